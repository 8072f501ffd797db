"""Metadata and segments that somebody crafted, with right checksums: typed errors, little memory.

Nothing is read or written outside the stream, whatever its metadata names.
"""

import base64
import json
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from crash_kit import SCHEMA, content_on, events, files_of, fresh_storage, restore
from limits import memory_limit

from segstore_ds.engine import table_status
from segstore_ds.engine.staging import Layout
from segstore_ds.errors import FormatError, NotFoundError, SegstoreError
from segstore_ds.format.envelope import digest_of, encode_envelope
from segstore_ds.format.frame import encode_frame
from segstore_ds.format.root_codec import encode_root
from segstore_ds.format.schema import fingerprint
from segstore_ds.format.segment_arrow import HEADER_BYTES, SegmentWriter
from segstore_ds.format.status import PART_SCHEMA, encode_part
from segstore_ds.storage import Storage
from segstore_ds.stream import create_on, open_on
from segstore_ds.testing.faults import FaultStorage

SECRET = b"what lies outside the stream"
MEMORY = 768 << 20
LONGEST_S = 20.0
NEWEST = "log/00000000000000000005"
OUTSIDE = [
    "../canary",
    "../../canary",
    "x/../../../canary",
    "a/..",
    "..",
    "/etc/passwd",
    "/canary/x",
    "file:///etc/passwd",
    "s3://bucket/key",
    "memory://other/x",
    "a/b/c",
    "a//b",
    "a/b\x00",
    "a/b\n",
    "a\\..\\..\\canary",
    "%2e%2e/canary",
    "~/canary",
    ".hidden/x",
    "_x/y",
    "",
    "a/" + "b" * 5000,
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the stream's folder, canaries beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_status, "INLINE_SOFT", 2)
        storage = fresh_storage("local", tmp_path)
        stream = create_on(storage, SCHEMA)
        for batch in range(5):
            rows = events(batch * 2, batch * 2 + 2)
            stream.append(rows, writer_id="w", batch_id=batch, layout=Layout(compression="none"))
    assert stream.root.parts
    assert len(stream.root.entries) == 2
    for outside in (tmp_path / "canary", tmp_path / "x" / "canary", tmp_path.parent / "canary"):
        outside.parent.mkdir(exist_ok=True)
        outside.write_bytes(SECRET)
    return Path(storage.url.removeprefix("file://"))


@pytest.fixture
def storage(folder: Path) -> Storage:
    """Return the storage of the stream."""
    from segstore_ds.storage import open_storage

    return open_storage(folder)


def root_json(storage: Storage) -> dict[str, Any]:
    """Return the newest root as JSON."""
    return json.loads(encode_root(open_on(storage).root))


def plant(storage: Storage, body: bytes) -> None:
    """Put a body in the place of the newest root, in an envelope that is right."""
    storage.put(NEWEST, encode_envelope(body))


def put_back(storage: Storage, root: bytes) -> None:
    """Make a root the newest again, whatever was committed since."""
    for info in list(storage.list("log")):
        if info.path > NEWEST and not info.path.endswith("_latest"):
            storage.delete(info.path)
    storage.put(NEWEST, root)


def attack(storage: Storage, *, refused: bool = True) -> None:
    """Do everything with the stream: each step is refused, or harmless, and soon over."""
    began = time.process_time()
    errors: list[SegstoreError] = []
    steps: list[Callable[[], object]] = [
        lambda: open_on(storage).read(filters=[["n", ">=", 0]]).read_all(),
        lambda: open_on(storage).read().read_all(),
        lambda: open_on(storage).verify().check(),
        lambda: open_on(storage).read("2020-01-01T00:00:00Z").read_all(),
        lambda: open_on(storage).append(events(0, 1), writer_id="v", batch_id=1),
        lambda: open_on(storage).overwrite(events(0, 1)),
        lambda: open_on(storage).purge(older_than_s=0),
    ]
    with memory_limit(MEMORY):
        for step in steps:
            try:
                step()
            except SegstoreError as error:
                errors.append(error)
    assert errors or not refused
    assert not any(SECRET.decode() in str(error) for error in errors)
    assert time.process_time() - began < LONGEST_S


def snapshot(folder: Path) -> dict[str, bytes]:
    """Return every file around a stream, the stream's own aside."""
    above = folder.parent
    around = {path: path.read_bytes() for path in above.rglob("*") if path.is_file()}
    return {str(p): data for p, data in around.items() if not p.is_relative_to(folder)}


Change = Callable[[dict[str, Any], str], None]


def _entry_path(root: dict[str, Any], path: str) -> None:
    root["entries"][0][1] = path


def _part_path(root: dict[str, Any], path: str) -> None:
    root["parts"][0][0] = path


def _writers_path(root: dict[str, Any], path: str) -> None:
    root["writers_blob"] = [path, 10, "0" * 32, 1]


def _schema_path(root: dict[str, Any], path: str) -> None:
    blob = [path, 10, "0" * 32, 1]
    root["epochs"][0] |= {"schema": None, "spark": None, "blob": blob}


def _retired_path(root: dict[str, Any], path: str) -> None:
    root["retired"] = [[kind, path, 1, 1] for kind in ("segment", "status", "part")]


def _retired_blob_path(root: dict[str, Any], path: str) -> None:
    root["retired_blobs"] = [[path, 10, "0" * 32, 1]]


PATHS: list[Change] = [
    _entry_path,
    _part_path,
    _writers_path,
    _schema_path,
    _retired_path,
    _retired_blob_path,
]


@pytest.mark.parametrize("change", PATHS, ids=lambda change: change.__name__.strip("_"))
def test_paths_that_leave_the_stream_are_refused(
    folder: Path, storage: Storage, change: Change
) -> None:
    """Each place in a root that names an object refuses whatever is not an object's name."""
    good, around = storage.get(NEWEST), snapshot(folder)
    for path in OUTSIDE:
        put_back(storage, good)
        root = root_json(storage)
        change(root, path)
        plant(storage, json.dumps(root).encode())
        with pytest.raises(FormatError):
            open_on(storage)
        attack(storage)
    assert snapshot(folder) == around


def test_paths_in_a_part_are_refused(folder: Path, storage: Storage) -> None:
    """A status part whose entries name something outside is refused when it is read."""
    good, around = storage.get(NEWEST), snapshot(folder)
    stream = open_on(storage)
    entries = stream._status.part(stream.root.parts[0])
    for path in OUTSIDE:
        put_back(storage, good)
        put_part(storage, encode_part((replace(entries[0], path=path), *entries[1:])))
        with pytest.raises(FormatError):
            content_on(storage)
        attack(storage)
    assert snapshot(folder) == around


def put_part(storage: Storage, body: bytes, raw: bytes | None = None) -> None:
    """Put a part's body, and a root that refers to it by the right digest."""
    data = raw if raw is not None else encode_envelope(body)
    root = open_on(storage).root
    path = f"status/{0:020d}-part-{digest_of(data)}"
    storage.put(path, data)
    part = replace(root.parts[0], path=path, bytes=len(data), digest=digest_of(data))
    plant(storage, encode_root(replace(root, parts=(part, *root.parts[1:]))))


HUGE = [2**63 - 1, 2**62, 2**53, 2**32, 10**9]


def test_huge_numbers_are_refused_or_harmless(storage: Storage) -> None:
    """Counts, sizes and versions beyond all measure cost neither memory nor time."""
    good = storage.get(NEWEST)
    right = content_on(storage)
    whole = root_json(storage)
    integers = [name for name, value in whole.items() if type(value) is int]
    assert {"tail", "version", "log_start", "next_segment"} <= set(integers)
    places: list[tuple[Any, ...]] = [(name,) for name in integers]
    places += [("entries", 0, n) for n in (0, 2, 3, 4, 5)]
    places += [("parts", 0, n) for n in (1, 2, 3, 4)]
    places += [("writers", "w", n) for n in (1, 2, 3, 4)]
    places += [("epochs", 0, name) for name in ("number", "since")]
    for *path, last in places:
        for value in [*HUGE, 2**63, 10**40, -1, 0, 1.5, None, "7", True, [], {}]:
            put_back(storage, good)
            root = root_json(storage)
            target: Any = root
            for step in path:
                target = target[step]
            target[last] = value
            plant(storage, json.dumps(root).encode())
            began = time.process_time()
            with memory_limit(MEMORY):
                try:
                    found = content_on(storage)
                except SegstoreError:
                    found = None
                with suppress(SegstoreError):
                    open_on(storage).verify()
            harmless = last in ("time_us", "next_segment", "staging_floor", "generation", "since")
            harmless = harmless or path[:1] == ["writers"] or (*path, last) == ("log_start",)
            assert found in (None, right) or harmless or last in ("head", 0), (path, last, value)
            assert time.process_time() - began < LONGEST_S


def _deep(opening: bytes, closing: bytes) -> bytes:
    return opening * 200_000 + closing * 200_000


BODIES = {
    "deep lists": _deep(b"[", b"]"),
    "lists just deep enough": b"[" * 900 + b"]" * 900,
    "deep objects": _deep(b'{"a":', b"}"),
    "unclosed lists": b"[" * 1_000_000,
    "many lists": b"[" + b"[]," * 200_000 + b"[]]",
    "many objects": b"[" + b"{}," * 200_000 + b"{}]",
    "no JSON": b"\xff\xfe",
    "nothing": b"",
    "null": b"null",
    "a list": b"[]",
    "an object": b"{}",
    "a long number": b"9" * 100_000,
    "a long exponent": b"1e999999999",
    "NaN": b"NaN",
    "utf-16": '{"format":1}'.encode("utf-16"),
    "lone surrogates": b'{"format":1,"reader_features":["\\ud800"]}',
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies_that_are_no_root_are_refused(storage: Storage, name: str) -> None:
    """Deep, wide, empty or foreign JSON in a commit file: a format error."""
    plant(storage, BODIES[name])
    with memory_limit(MEMORY), pytest.raises(FormatError):
        open_on(storage)
    attack(storage)


@pytest.mark.parametrize("name", BODIES)
def test_unknown_fields_may_hold_anything(storage: Storage, name: str) -> None:
    """The same as the value of a field that this version does not know: refused, or carried."""
    root = root_json(storage)
    body = json.dumps(root).encode()[:-1] + b',"later":' + BODIES[name] + b"}"
    plant(storage, body)
    attack(storage, refused=False)


@pytest.mark.parametrize("name", BODIES)
def test_statistics_and_schemas_may_hold_anything(storage: Storage, name: str) -> None:
    """The same as a segment's statistics, and as Spark's JSON of the schema."""
    good = storage.get(NEWEST)
    text = BODIES[name].decode("latin-1")[:60_000]
    root = root_json(storage)
    root["entries"][0][7] = text
    plant(storage, json.dumps(root).encode())
    attack(storage, refused=name != "an object")
    put_back(storage, good)
    root["entries"][0][7] = None
    root["epochs"][0]["spark"] = text
    plant(storage, json.dumps(root).encode())
    attack(storage, refused=False)
    wider = pa.table({"n": [1], "s": ["x"], "more": [1]})
    with suppress(SegstoreError):
        open_on(storage).append(wider, merge_schema=True)
    root["epochs"][0] |= {"spark": None, "schema": text}
    plant(storage, json.dumps(root).encode())
    attack(storage)


def bomb(raw_bytes: int, *, claimed: int | None = None) -> bytes:
    """Return an envelope of a few kilobytes that holds, or claims to hold, very many zeros."""
    compressor = zstandard.ZstdCompressor(level=3)
    unit = bytes(1 << 20)
    stream = compressor.compressobj(size=raw_bytes)
    stored = b"".join(stream.compress(unit) for _ in range(raw_bytes >> 20)) + stream.flush()
    header = f"zstd {len(stored)} {raw_bytes if claimed is None else claimed}".encode()
    return b"v1\n" + header + b" " + digest_of(header, stored).encode() + b"\n" + stored


@pytest.mark.parametrize("claimed", [None, 0, 100, 1 << 20, 10**12 - 1])
def test_bombs_are_not_unpacked(storage: Storage, claimed: int | None) -> None:
    """A quarter gigabyte of zeros in a few kilobytes is refused unpacked, lies included."""
    good, data = storage.get(NEWEST), bomb(256 << 20, claimed=claimed)
    assert len(data) < 1 << 20
    storage.put(NEWEST, data)
    with memory_limit(128 << 20), pytest.raises(FormatError):
        open_on(storage)
    put_back(storage, good)
    put_part(storage, b"", raw=data)
    with memory_limit(128 << 20), pytest.raises(FormatError):
        content_on(storage)
    attack(storage)


@pytest.mark.parametrize("kind", ["compressed", "nulls", "no end"])
def test_parts_that_somebody_crafted_are_refused(storage: Storage, kind: str) -> None:
    """Arrow data with a right digest that unpacks to a lot, lacks values, or breaks off."""
    rows = 5_000_000 if kind == "compressed" else 2
    texts = pa.nulls(rows, pa.string()) if kind == "nulls" else pa.repeat("", rows)
    columns = [
        texts if pa.types.is_string(field.type) else pa.repeat(pa.scalar(1, pa.int64()), rows)
        for field in PART_SCHEMA
    ]
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd" if kind == "compressed" else None)
    with pa.ipc.new_stream(sink, PART_SCHEMA, options=options) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=PART_SCHEMA))
    body = bytes(sink.getvalue())
    put_part(storage, body[: len(body) // 2] if kind == "no end" else body)
    del columns, texts, sink
    with memory_limit(128 << 20), pytest.raises(FormatError):
        content_on(storage)
    attack(storage)


def plant_segment(storage: Storage, data: bytes, *, rows: int = 2, footer: int) -> None:
    """Put bytes in the place of the newest segment, with a root that fits them."""
    root = open_on(storage).root
    old = root.entries[-1]
    storage.put(f"segments/{old.path}", data)
    end = data[len(data) - footer :]
    entry = replace(
        old, rows=rows, bytes=len(data), footer_bytes=footer, footer_crc=zlib.crc32(end)
    )
    plant(storage, encode_root(replace(root, entries=(*root.entries[:-1], entry))))


def build_segment(
    frame_data: bytes, *, raw_bytes: int, rows: int = 2, index: bytes | None = None
) -> tuple[bytes, int]:
    """Return a segment of one frame with whatever bytes and index, and its end's length."""
    frame = encode_frame(
        events(0, rows).to_batches()[0],
        compression="none",
        compression_level=None,
        stats_columns=[],
    )
    data = frame_data + bytes(-len(frame_data) % 64)
    crafted = replace(
        frame, data=pa.py_buffer(data), crc=zlib.crc32(data), raw_bytes=raw_bytes, rows=rows
    )
    writer = SegmentWriter()
    head = writer.start() + data
    writer.add(crafted)
    end, _ = writer.finish()
    if index is not None:
        end = build_end(len(head), index)
    assert fingerprint(SCHEMA) == frame.fingerprint
    return head + end, len(end)


def build_end(place: int, footer: bytes, raw_bytes: int | None = None) -> bytes:
    """Return a footer and a trailer whose checksums are right."""
    import struct

    raw = zstandard.frame_content_size(footer) if raw_bytes is None else raw_bytes
    facts = struct.pack("<QIIIII", place, len(footer), raw, zlib.crc32(footer), 1, 0)
    return footer + facts + struct.pack("<I8s", zlib.crc32(facts), b"SEGATAIL")


def compressed_zeros(rows: int) -> bytes:
    """Return an Arrow stream of one batch that is small only because it is compressed."""
    batch = pa.record_batch(
        [pa.array([0] * rows, pa.int64()), pa.array([""] * rows, pa.string())], schema=SCHEMA
    )
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, SCHEMA, options=options) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def test_frame_that_unpacks_to_more_than_it_says_is_refused(storage: Storage) -> None:
    """What a frame's buffers take is checked against the index before they are unpacked."""
    good = storage.get(NEWEST)
    packed = compressed_zeros(8 << 20)
    assert len(packed) < 1 << 20
    for raw_bytes in (0, 1, 1000, 1 << 20):
        data, footer = build_segment(packed, raw_bytes=raw_bytes)
        plant_segment(storage, data, footer=footer)
        with memory_limit(64 << 20), pytest.raises(FormatError, match="too large"):
            content_on(storage)
        put_back(storage, good)


def test_frame_whose_buffers_lie_about_their_size_is_refused(storage: Storage) -> None:
    """Each eight bytes of a compressed frame replaced by huge and negative numbers."""
    good = storage.get(NEWEST)
    packed = compressed_zeros(2)
    for place in range(0, len(packed) - 8, 8):
        for value in (2**62, 2**40, 2**31, -1, -(2**40)):
            changed = bytearray(packed)
            changed[place : place + 8] = value.to_bytes(8, "little", signed=True)
            data, footer = build_segment(bytes(changed), raw_bytes=1 << 20)
            plant_segment(storage, data, footer=footer)
            with memory_limit(MEMORY), suppress(FormatError):
                assert content_on(storage)[1] == 10
            put_back(storage, good)


INDEXES = {
    **BODIES,
    "more frames than bytes": b'{"bytes":[%s],"rows":[],"crc":[],"raw":[],"schemas":[],"schema":[],'
    b'"stats":{}}' % (b"64," * 1_000_000 + b"64"),
    "strings as numbers": b'{"bytes":["64"],"rows":["1"],"crc":[0],"raw":[0],"schemas":["x"],'
    b'"schema":[0],"stats":{}}',
    "negative": b'{"bytes":[-64],"rows":[1],"crc":[0],"raw":[0],"schemas":["x"],"schema":[0],'
    b'"stats":{}}',
    "stats of the wrong kind": b'{"bytes":[640],"rows":[2],"crc":[0],"raw":[0],"schemas":["x"],'
    b'"schema":[0],"stats":{"n":[[{"q":1}],[{"b":"!"}],[0]]}}',
}


@pytest.mark.parametrize("name", INDEXES)
def test_indexes_that_somebody_crafted_are_refused(storage: Storage, name: str) -> None:
    """A segment's footer with right checksums but any content: a format error."""
    footer = zstandard.ZstdCompressor().compress(INDEXES[name])
    data, end = build_segment(bytes(640), raw_bytes=0, index=footer)
    plant_segment(storage, data, footer=end)
    with memory_limit(MEMORY), pytest.raises(FormatError):
        content_on(storage)
    attack(storage)


def test_largest_index_stays_within_memory(storage: Storage) -> None:
    """A footer as large as one may be, made of what costs a parser most, and one beyond that."""
    for count in ((32 << 20) // 3 - 2, 30 << 20):
        raw = b"[" + b"{}," * count + b"0]"
        data, end = build_segment(
            bytes(640), raw_bytes=0, index=zstandard.ZstdCompressor().compress(raw)
        )
        plant_segment(storage, data, footer=end)
        with memory_limit(1 << 30), pytest.raises(FormatError):
            content_on(storage)


def test_reading_asks_only_for_objects_of_the_stream(storage: Storage) -> None:
    """Every request of a read stays in the stream's own folders."""
    watched = FaultStorage(storage)
    content_on(watched)
    folders = {call.split(" ", 1)[1].split("/")[0] for call in watched.calls if " " in call}
    assert folders <= {"log", "status", "segments"}


def test_links_out_of_the_stream_are_not_listed_as_folders(folder: Path, storage: Storage) -> None:
    """A link to a folder outside does not make what lies there part of the stream."""
    (folder / "segments" / "elsewhere").symlink_to(folder.parent)
    report = open_on(storage).verify()
    assert not [name for name in report.leftovers if "canary" in name]


def test_base64_that_is_no_schema_is_refused(storage: Storage) -> None:
    """Every change of a byte of the stored schema is refused or gives the same columns."""
    good = storage.get(NEWEST)
    text = base64.b64decode(root_json(storage)["epochs"][0]["schema"])
    for place in range(len(text)):
        changed = bytearray(text)
        changed[place] ^= 0xFF
        root = root_json(storage)
        root["epochs"][0]["schema"] = base64.b64encode(changed).decode()
        plant(storage, json.dumps(root).encode())
        with memory_limit(MEMORY), suppress(FormatError):
            content_on(storage)
        put_back(storage, good)


def test_empty_folder_and_foreign_files_are_no_stream(tmp_path: Path) -> None:
    """Other files, also in a folder called log, are not taken for a stream."""
    storage = fresh_storage("local", tmp_path)
    restore(storage, {"log/41": b"x", "log/_latest": b"41", "log/x/00000000000000000000": b"x"})
    with pytest.raises(NotFoundError):
        open_on(storage)
    assert HEADER_BYTES == 64
    assert len(files_of(storage)) == 3
