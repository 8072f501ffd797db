"""The minimal reader of FORMAT.md, which shares no code with segstore and checks every checksum."""

import base64
import hashlib
import itertools
import json
import re
import struct
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard


def read_stream(folder: Path) -> tuple[int, int, pa.Table]:
    """Return head, tail and all events of a stream."""
    root = newest_root(folder)
    if {*root["reader_features"]} - {"column-names", "nanoseconds"} or root["dropped"]:
        raise NotImplementedError(root["reader_features"])
    shared = [unquote(origin["url"]) for origin in root["origins"].values()]
    places = [folder, *(Path(url.removeprefix("file://")) for url in shared)]
    schemas = [epoch_schema(places, epoch) for epoch in root["epochs"]]
    parts = [json.loads(status(places, row[0])) for row in root["lists"]]
    entries, start = [], None
    for path, first, end, count, size, *_ in itertools.chain(*parts, root["parts"]):
        start = first if start is None else start
        rows = part_rows(places, path, size)
        assert (len(rows), sum(row[2] for row in rows)) == (count, end - first)
        entries += rows
    entries += root["entries"]
    first = root["tail"] - sum(entry[2] for entry in entries)
    assert start in (None, first)
    ends = itertools.accumulate((entry[2] for entry in entries), initial=first)
    wanted = [
        (row, end) for row, end in zip(entries, [*ends][1:], strict=True) if end > root["head"]
    ]
    pieces = [lifted(segment(places, row, schemas), schemas[-1]) for row, _ in wanted]
    table = pa.concat_tables([schemas[-1].empty_table(), *pieces])
    called = root["epochs"][-1].get("names", {})
    table = table.rename_columns([called.get(name) or name for name in table.column_names])
    return root["head"], root["tail"], table.slice(table.num_rows - root["tail"] + root["head"])


def newest_root(folder: Path) -> dict[str, Any]:
    """Return the newest root, found by listing (4.3)."""
    names = [p.name for p in (folder / "log").iterdir() if re.fullmatch("[0-9]{20}", p.name)]
    data = (folder / "log" / max(names)).read_bytes()
    end = len(b"\n".join(data.split(b"\n", 2)[:2])) + 1 + int(data.split(b" ", 2)[1])
    root: dict[str, Any] = json.loads(envelope(data[:end]))
    assert (root["format"], root["version"]) == (1, int(max(names)))
    for entry in root["entries"]:
        if entry[8]:  # its bytes lie here (6.2)
            end, entry[1] = end + entry[8][0], data[end : end + entry[8][0]]
    assert end == len(data)
    return root


def found(places: list[Path], name: str) -> bytes:
    """Return an object of the stream, or of one that it shares objects with (4.9)."""
    return next(place / name for place in places if (place / name).exists()).read_bytes()


def blake(data: bytes) -> str:
    """Return the digest of metadata."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def status(places: list[Path], path: str) -> bytes:
    """Return the body of a status object (5)."""
    return envelope(found(places, path), path[-32:])


def envelope(data: bytes, expected: str | None = None) -> bytes:
    """Return the body of a metadata file; `expected` is the digest in its name (2)."""
    version, header, stored = data.split(b"\n", 2)
    codec, stored_bytes, raw_bytes, digest = header.split(b" ")
    assert (version, len(stored)) == (b"v1", int(stored_bytes))
    assert blake(header[:-33] + stored) == digest.decode() == (expected or digest.decode())
    body = {b"plain": bytes, b"zstd": zstandard.decompress}[codec](stored)
    assert len(body) == int(raw_bytes)
    return body


def epoch_schema(places: list[Path], epoch: dict[str, Any]) -> pa.Schema:
    """Return the schema of an epoch (3.1, 6)."""
    text = epoch["schema"]
    if epoch["blob"] is not None:
        text = json.loads(status(places, epoch["blob"][0]))[0]
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def part_rows(places: list[Path], path: str, size: int) -> list[list[Any]]:
    """Return the segments of a part as the root's `entries` has them, but statistics (5)."""
    data = found(places, path)
    facts, columns = rows_of(envelope(data[:size], path[-32:]))
    for length, digest, *_ in (facts[name] for name in sorted(facts, reverse=True)):
        rows_of(envelope(data[size : size + length], digest))
        size += length
    assert size == len(data)
    entries = []
    for place, kind in enumerate(columns.pop("kind")):
        row = {name: values[place] for name, values in columns.items()}
        form, template = kind.split(" ", 1)
        segment_id = row["epochs"] << 32 | row["numbers"]
        fields = {name: str(row[f"{name}s"]) for name in ("task", "attempt", "place")}
        fields |= {"version": f"{row['versions']:020d}", "nonce": row["nonces"].hex()}
        name = template.format(**fields, id=f"{segment_id:016x}")
        facts = [row["rows"], row["bytes"], row["footer_bytes"], row["crcs"]]
        entries.append([segment_id, name, *facts, form, None])
    return entries


def rows_of(body: bytes) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return the facts and the columns of rows (5.1)."""
    (batch,) = list(pa.ipc.open_stream(body))
    columns = {}
    for field, column in zip(batch.schema, batch.columns, strict=True):
        values = column.to_pylist()
        if b"first" in (field.metadata or {}):
            values = [*itertools.accumulate([int(field.metadata[b"first"]), *values[1:]])]
        columns[field.name] = values
    return json.loads((batch.schema.metadata or {}).get(b"facts", b"{}")), columns


def segment(places: list[Path], entry: list[Any], schemas: list[pa.Schema]) -> pa.Table:
    """Return the events of a segment, in the schema of its epoch (6)."""
    segment_id, path, rows, size, end_bytes, end_crc, form, _, *more = entry
    if isinstance(path, bytes):
        assert form == "arrow"
        return read_frame(path, rows, more[0], schemas[segment_id >> 32])
    data = found(places, f"segments/{path}")
    assert (len(data), zlib.crc32(data[-end_bytes:])) == (size, end_crc)
    read = {"arrow": read_arrow, "parquet": read_parquet}[form]
    table = read(data, end_bytes, schemas[segment_id >> 32])
    assert table.num_rows == rows
    return table


def frames(index: dict[str, Any], schema: pa.Schema, data: bytes, span: tuple[int, int]) -> Any:
    """Yield the bytes and the number of rows of each frame, which fill the span (6)."""
    start, end = span
    fields = (index[name] for name in ("bytes", "rows", "crc", "schema"))
    for size, rows, crc, place in zip(*fields, strict=True):
        frame, start = data[start : start + size], start + size
        assert (zlib.crc32(frame), index["schemas"][place]) == (crc, fingerprint(schema))
        yield frame, rows
    assert start == end


def read_frame(frame: bytes, rows: int, facts: list[Any], schema: pa.Schema) -> pa.Table:
    """Return the events of an inline segment (6.2)."""
    (batch,) = list(pa.ipc.open_stream(frame))
    assert (len(frame) % 64, batch.num_rows) == (0, rows)
    assert [len(frame), zlib.crc32(frame), fingerprint(schema)] == [*facts[:2], facts[3]]
    return pa.Table.from_batches([batch], schema)


def read_arrow(data: bytes, end_bytes: int, schema: pa.Schema) -> pa.Table:
    """Return the events of a segment of the format `arrow` (6)."""
    header, trailer = struct.pack("<8sI48x", b"SEGARROW", 1), data[-40:]
    assert data[:64] == header + struct.pack("<I", zlib.crc32(header))
    place, length, raw, crc, version, reserved = struct.unpack_from("<QIIIII", trailer)
    assert struct.unpack_from("<I8s", trailer, 28) == (zlib.crc32(trailer[:28]), b"SEGATAIL")
    assert (version, reserved, place + end_bytes, length) == (1, 0, len(data), end_bytes - 40)
    footer = data[place : place + length]
    assert zlib.crc32(footer) == crc
    index, batches = json.loads(zstandard.decompress(footer, max_output_size=raw)), []
    for frame, rows in frames(index, schema, data, (64, place)):
        (batch,) = list(pa.ipc.open_stream(frame))
        assert (len(frame) % 64, batch.num_rows) == (0, rows)
        batches.append(batch)
    return pa.Table.from_batches(batches, schema)


def read_parquet(data: bytes, end_bytes: int, schema: pa.Schema) -> pa.Table:
    """Return the events of a segment of the format `parquet` (6.1)."""
    assert (data[:4], data[-4:]) == (b"PAR1", b"PAR1")
    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    facts = base64.b64decode(file.metadata.metadata[b"segstore"], validate=True)
    facts = json.loads(zstandard.decompress(facts))
    groups = list(frames(facts["index"], schema, data, (4, len(data) - end_bytes)))
    assert (facts["version"], len(groups)) == (1, file.metadata.num_row_groups)
    for number, (frame, rows) in enumerate(groups):
        ends = [*itertools.accumulate(facts["lengths"][number], initial=0)]
        crcs = [zlib.crc32(frame[first:end]) for first, end in itertools.pairwise(ends)]
        assert (crcs, ends[-1]) == (facts["crcs"][number], len(frame))
        assert file.metadata.row_group(number).num_rows == rows
    return pa.Table.from_arrays(file.read().columns, schema=schema)


def lifted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return events in the reading schema (7)."""
    known, empty = set(table.schema.names), pa.nulls(table.num_rows)
    columns = [table[field.name] if field.name in known else empty for field in schema]
    casts = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(casts, schema=schema)


def fingerprint(schema: pa.Schema) -> str:
    """Return the fingerprint of a schema (6)."""
    value = [described(field) for field in schema]
    return blake(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())[:16]


def described(field: pa.Field) -> dict[str, Any]:
    """Return what a fingerprint covers of a field (6)."""
    pairs, kind, name = (field.metadata or {}).items(), field.type, None
    text = {key.decode("latin-1"): value.decode("latin-1") for key, value in pairs}
    if pa.types.is_map(kind):
        name, children = "map", [kind.key_field, kind.item_field]
    elif pa.types.is_nested(kind):
        name = "struct" if pa.types.is_struct(kind) else "list"
        children = [kind.field(place) for place in range(kind.num_fields)]
    shape = {name: [described(child) for child in children]} if name else str(kind)
    return {"metadata": text, "name": field.name, "nullable": field.nullable, "type": shape}
