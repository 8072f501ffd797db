"""Roots come back whole, carry what they don't know, and refuse what they can't keep."""

import json
from dataclasses import fields, replace

import pyarrow as pa
import pytest

from segstore_ds.errors import CorruptionError
from segstore_ds.format import names
from segstore_ds.format.arrow.frame import encode_frame
from segstore_ds.format.inline import encoded_entry
from segstore_ds.format.operation import Operation
from segstore_ds.format.record import from_json
from segstore_ds.format.root import (
    BlobRef,
    Epoch,
    HistoryRow,
    Kept,
    LastUpkeep,
    PartRef,
    Retired,
    Root,
    SegmentEntry,
    Tag,
    Writer,
    decode_root,
    encode_root,
)

DIGEST = "0123456789abcdef" * 2
STATUS = f"status/{7:020d}-segments-{DIGEST}"
BLOB = BlobRef(f"status/{7:020d}-writers-{DIGEST}", 900, 300)
FULL = Root(
    stream_id="stream",
    version=9,
    transaction="t9",
    parent="t8",
    time_us=1_700_000_000_000_000,
    operation="append",
    epochs=(Epoch(0, 0, "c2NoZW1h", '{"type":"struct"}'), Epoch(1, 5, None, None, BLOB)),
    generation=2,
    head=3,
    tail=30,
    sealed=True,
    dropped=True,
    next_segment=4,
    log_start=5,
    staging_floor=6,
    upkeep=LastUpkeep(8, 1_699_999_999_000_000, 5),
    restored=7,
    lists=(PartRef(f"status/{6:020d}-list-{DIGEST}", 0, 4, 9, 300),),
    parts=(PartRef(STATUS, 4, 10, 2, 400),),
    entries=(
        SegmentEntry(2, "token/a.arrow", 15, 1000, 100, 77, "arrow", '{"n":[1,2,0]}'),
        SegmentEntry(1 << 32 | 3, "token/b.arrow", 5, 900, 90, 78),
    ),
    retired=(
        Retired("segment", "token/old.arrow", 8, 1_600_000_000_000_000),
        Retired("part", STATUS, 8, 1_600_000_000_000_000),
    ),
    retired_parts=(PartRef(f"status/{7:020d}-retired-{DIGEST}", 2, 4, 9, 300, 5, 6),),
    retired_lists=(PartRef(f"status/{6:020d}-list-{DIGEST}", 0, 2, 9, 300, 4, 5),),
    writers={
        "etl": Writer("query", 4, 9, 5, 30, "AAECAwQFBgc="),
        "ärger": Writer("", 0, 2, 0, 0),
    },
    writers_parts=(PartRef(f"status/{7:020d}-writers-{DIGEST}", 2, 4, 9, 300),),
    writers_lists=(PartRef(f"status/{6:020d}-list-{DIGEST}", 0, 3, 9, 300),),
    tags={"eod": Tag(12, 3, 17)},
    kept={"eod": Kept(2, 1, None)},
    pins={"clone": {"version": 3}},
    origins={"o": "s3://x"},
    copies={"c": [1]},
    redactions={"r": {"version": 8}},
    history=(
        HistoryRow(9, 7, "append", 3, 30, writer_id="etl", batch_id=4, client="ä", transaction="t"),
    ),
    history_parts=(PartRef(f"status/{8:020d}-history-{DIGEST}", 5, 9, 4, 100, 3, 6),),
    history_lists=(PartRef(f"status/{8:020d}-list-{DIGEST}", 0, 5, 5, 90, 1, 3),),
    properties={"owner": "ada"},
    client="segstore/1",
    extra={"levels": {"deep": [1, None, "x"]}, "weather": "fine"},
)


def value_of(root: Root = FULL) -> dict:
    return json.loads(encode_root(root))


def decode(value) -> Root:
    return decode_root(json.dumps(value).encode(), where="log/9")


def test_every_field_comes_back():
    defaults = Root("s", 0, "t", "", 0, "create", FULL.epochs)
    unset = {"reader_features", "writer_features", "epochs"}  # all but these differ from defaults
    known = {field.name for field in fields(Root)} - unset
    assert all(getattr(FULL, name) != getattr(defaults, name) for name in known)
    assert decode_root(encode_root(FULL), where="x") == FULL
    assert decode_root(encode_root(defaults), where="x") == defaults


def test_the_same_root_gives_the_same_bytes():
    shuffled = replace(FULL, writers=dict(reversed(FULL.writers.items())))
    assert encode_root(shuffled) == encode_root(FULL)
    assert encode_root(decode_root(encode_root(FULL), where="x")) == encode_root(FULL)


ROWS = {
    "entries": value_of()["entries"][0],
    "parts": value_of()["parts"][0],
    "retired": value_of()["retired"][0],
    "retired_parts": value_of()["retired_parts"][0],
    "history": value_of()["history"][0],
    "history_parts": value_of()["history_parts"][0],
    "lists": value_of()["lists"][0],
}


@pytest.mark.parametrize("name", ROWS)
def test_cells_behind_those_of_a_row_are_ignored(name):
    """A newer writer adds cells under a writer feature, so no older one drops them."""
    known = decode(value_of() | {name: [ROWS[name]]})
    assert decode(value_of() | {name: [[*ROWS[name], {"later": 1}, None]]}) == known
    with pytest.raises(CorruptionError, match="not a row"):
        decode(value_of() | {name: [ROWS[name][:-1]]})


@pytest.mark.parametrize(
    ("name", "place", "wrong"),
    [
        *(("entries", place, 0) for place in (2, 3, 4)),
        *(("entries", place, -1) for place in (0, 5)),
        ("entries", 1, "../../etc/passwd"),
        ("entries", 1, "/etc/passwd"),
        ("entries", 6, 7),
        ("entries", 7, 7),
        ("parts", 0, "status/../x"),
        ("parts", 2, 0),
        ("parts", 3, 0),
        ("parts", 1, 10),
        ("history_parts", 5, 7),
        ("retired", 1, "../x"),
        ("retired_parts", 0, "log/0"),
    ],
)
def test_a_row_with_a_bad_value_is_refused(name, place, wrong):
    row = list(ROWS[name])
    row[place] = wrong
    with pytest.raises(CorruptionError):
        decode(value_of() | {name: [row]})


@pytest.mark.parametrize(
    "epoch",
    [
        {"number": 0, "since": 0, "schema": None, "spark": None, "blob": None},
        {
            "number": 0,
            "since": 0,
            "schema": "x",
            "spark": None,
            "blob": value_of()["epochs"][1]["blob"],
        },
        {"number": 1, "since": 0, "schema": "x", "spark": None, "blob": None},
    ],
)
def test_a_malformed_epoch(epoch):
    with pytest.raises(CorruptionError, match="epoch"):
        decode(value_of() | {"epochs": [epoch]})


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *((1, path) for path in ("0-1/a.arrow", names.build_inline_path(9))),
        *((2, 0), (3, 0), (3, 65), (5, 1), (6, "parquet"), (9, 1)),
        *((8, facts) for facts in (None, [64, 1, 2], [65, 1, 2, ""], [64, -1, 2, ""])),
    ],
)
def test_an_inline_segment_without_its_frames_facts_is_refused(place, value):
    """Or with impossible ones."""
    batch = pa.record_batch({"n": [1, 2]})
    frame = encode_frame(batch, compression="zstd", compression_level=None, stats_columns=[])
    body = value_of(replace(FULL, entries=(encoded_entry(0, frame),), tail=12))
    assert decode(body).entries[0].rows == 2
    body["entries"][0][place] = value
    with pytest.raises(CorruptionError):
        decode(body)


def test_only_an_inline_segment_has_an_inline_path():
    """An object's entry can't give the name by which readers know a frame."""
    row = [0, names.build_inline_path(0), 1, 1, 1, 1, "arrow", None, None, 0, 0]
    with pytest.raises(CorruptionError, match="path"):
        from_json(SegmentEntry, row, where="x")


def test_names_of_operations_never_change_and_later_ones_are_carried_through():
    """They are on disk."""
    stored = (
        "create append overwrite copy compact redact truncate seal restore drop tag untag reader "
        "pin unpin materialize set-properties change-schema follow promote repair purge upkeep "
        "merge lost"
    )
    assert [operation.value for operation in Operation] == stored.split()
    for operation in (Operation.MERGE, "an-operation-of-a-later-version"):
        read = decode_root(encode_root(replace(FULL, operation=operation)), where="log/9")
        assert read.operation == operation
        assert type(read.operation) is str


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000, b'{"format": NaN}', b'"x"']
)
def test_a_body_that_is_no_root(body):
    with pytest.raises(CorruptionError, match="log/9"):
        decode_root(body, where="log/9")
