"""Roots come back whole, carry what they don't know, and refuse what they can't keep."""

import json
from dataclasses import fields, replace

import pytest

from segstore_ds.errors import CorruptionError, UnsupportedVersionError
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
    check_writable,
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
    names = {field.name for field in fields(Root)} - unset
    assert all(getattr(FULL, name) != getattr(defaults, name) for name in names)
    assert decode_root(encode_root(FULL), where="x") == FULL
    assert decode_root(encode_root(defaults), where="x") == defaults


def test_the_same_root_gives_the_same_bytes():
    shuffled = replace(FULL, writers=dict(reversed(FULL.writers.items())))
    assert encode_root(shuffled) == encode_root(FULL)
    assert encode_root(decode_root(encode_root(FULL), where="x")) == encode_root(FULL)


def test_unknown_fields_are_carried_through_a_change():
    known = decode(value_of() | {"new_thing": {"a": [1, 2]}, "flag": None})
    changed = replace(known, version=10, tail=40)
    again = value_of(changed)
    assert again["new_thing"] == {"a": [1, 2]}
    assert again["flag"] is None
    assert again["weather"] == "fine"
    assert again["tail"] == 40


def test_an_unknown_field_never_hides_a_known_one():
    assert decode(value_of(replace(FULL, extra={"tail": 999}))).tail == FULL.tail


def test_an_unknown_reader_feature_is_refused_by_name():
    with pytest.raises(UnsupportedVersionError, match=r"features=\['levels2'\]"):
        decode(value_of() | {"reader_features": ["levels2"]})


def test_an_unknown_writer_feature_is_read_but_not_written():
    root = decode(value_of() | {"writer_features": ["zeta", "alpha"]})
    assert root.tail == FULL.tail
    with pytest.raises(
        UnsupportedVersionError, match=r"features=\['alpha', 'zeta'\].*can still read"
    ):
        check_writable(root)
    check_writable(FULL)


def test_a_newer_root_format_is_named():
    with pytest.raises(UnsupportedVersionError, match="found=2, supported=1"):
        decode({"format": 2, "nothing": "else"})


OPTIONAL = {"kept", "redactions", "upkeep", "restored"}


@pytest.mark.parametrize("name", sorted(set(value_of()) - OPTIONAL - set(FULL.extra)))
def test_a_missing_field_is_named(name):
    value = value_of()
    del value[name]
    with pytest.raises(CorruptionError, match=f"missing field: where='log/9'.*field='{name}'"):
        decode(value)


WRONG = [
    (name, wrong)
    for names, wrongs in [
        (
            (
                "generation", "version", "time_us", "head", "tail", "next_segment", "log_start",
                "staging_floor",
            ),
            (-1, 2**63, 1.0, "1", None, True, [1]),
        ),
        (("stream_id", "transaction", "parent", "operation", "client"), (None, 1, "x" * 500, [])),
        (("sealed", "dropped"), (0, 1, None, "true")),
        (("epochs", "parts", "entries", "retired", "retired_parts", "history"), (None, {}, "x", 3)),
        (("writers", "tags", "pins", "origins", "copies", "properties"), (None, [], "x", 3)),
        (("reader_features", "writer_features"), (None, [1], "x", {})),
        (("epochs", "parts", "entries", "retired", "retired_parts"), ([[]], [None], [{}], ["x"])),
        (("epochs",), ([],)),
        (("writers_parts", "writers_lists", "retired_lists"), (None, {}, 3, "x")),
        (("writers",), ({"a": None}, {"a": []}, {"a": {}})),
        (("format",), (0, -1, "1", None)),
    ]
    for name in names
    for wrong in wrongs
]  # fmt: skip


@pytest.mark.parametrize(("name", "wrong"), WRONG)
def test_a_field_of_another_type_is_corruption(name, wrong):
    with pytest.raises(CorruptionError):
        decode(value_of() | {name: wrong})


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


def test_a_writers_row_may_be_longer_too():
    row = ["o", 1, 2, 3, 4, "AAECAwQFBgc="]
    assert decode(value_of() | {"writers": {"w": [*row, 0]}}).writers["w"].end == 4
    for wrong in (row[:4], row[:5]):
        with pytest.raises(CorruptionError, match="not a row"):
            decode(value_of() | {"writers": {"w": wrong}})
    for wrong in (5, None, "AAEC", "A" * 1001):
        with pytest.raises(CorruptionError, match="fingerprint"):
            decode(value_of() | {"writers": {"w": [*row[:5], wrong]}})


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


def test_fields_behind_those_of_an_epoch_are_ignored():
    epoch = {"number": 0, "since": 0, "schema": "x", "spark": None, "blob": None}
    known = decode(value_of() | {"epochs": [epoch]})
    assert decode(value_of() | {"epochs": [{**epoch, "more": 1}]}) == known


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000, b'{"format": NaN}', b'"x"']
)
def test_a_body_that_is_no_root(body):
    with pytest.raises(CorruptionError, match="log/9"):
        decode_root(body, where="log/9")


def test_where_listing_and_epochs_start():
    assert FULL.listed_start == 0
    assert FULL.epoch.number == 1
    unlisted = replace(FULL, lists=())
    assert unlisted.listed_start == 4
    assert replace(unlisted, parts=()).listed_start == 10
    assert FULL.entries[1].epoch == 1
