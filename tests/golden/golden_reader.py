"""A reader of streams that shares no code with segstore: FORMAT.md's rules and pyarrow, no more.

It is slow, checks every checksum, and reads everything.
"""

import base64
import hashlib
import itertools
import json
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard


def read_stream(folder: Path) -> tuple[int, int, pa.Table]:
    """Return head, tail and all events of a stream."""
    root = newest_root(folder)
    if root["reader_features"]:
        raise NotImplementedError(root["reader_features"])
    schemas = {}
    for epoch in root["epochs"]:
        text = epoch["schema"]
        if epoch["blob"] is not None:
            path, size, digest, _ = epoch["blob"]
            text = json.loads(envelope(checked(folder / path, size, digest)))[0]
        schemas[epoch["number"]] = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
    schema = schemas[root["epochs"][-1]["number"]]
    entries, start = [], None
    parts = []
    for path, *_, size, digest in root["indexes"]:
        parts += json.loads(envelope(checked(folder / path, size, digest)))
    for path, part_start, part_end, segments, size, digest in [*parts, *root["parts"]]:
        start = part_start if start is None else start
        rows = level_rows(folder / path, size, digest)
        assert len(rows) == segments
        assert sum(row[2] for row in rows) == part_end - part_start
        entries += rows
    entries += root["entries"]
    if start is None:
        start = root["tail"] - sum(entry[2] for entry in entries)
    assert start + sum(entry[2] for entry in entries) == root["tail"]
    pieces = [segment(folder, entry, schemas, schema) for entry in entries]
    table = pa.concat_tables([schema.empty_table(), *pieces])
    return root["head"], root["tail"], table.slice(root["head"] - start)


def read_history(folder: Path) -> list[list[Any]]:
    """Return the rows of all commits, as the root writes them (FORMAT.md 5.4)."""
    root = newest_root(folder)
    refs = []
    for path, *_, size, digest in root["history_lists"]:
        refs += json.loads(envelope(checked(folder / path, size, digest)))
    rows = []
    for path, start, end, first_us, last_us, size, digest in [*refs, *root["history_parts"]]:
        _, columns = unpacked(envelope(checked(folder / path, size, digest)))
        part = [history_row(columns, place) for place in range(end - start)]
        assert [row[0] for row in part] == list(range(start, end))
        assert (part[0][1], part[-1][1]) == (first_us, last_us)
        rows += part
    return rows + root["history"]


def history_row(columns: dict[str, Any], place: int) -> list[Any]:
    """Return a row of a history part."""
    names = "version time operation head tail rows segments bytes writer_id batch_id client"
    names += " application attempts races_lost requests request_bytes transaction"
    row = []
    for name in names.split():
        value = columns[name][place]
        if f"{name}_texts" in columns:
            value = [None, *columns[f"{name}_texts"]][value]
        elif name == "batch_id" and value == -1:
            value = None
        row.append(value)
    return row


def read_readers(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the newest record of each named reader (FORMAT.md 8)."""
    records = {}
    for log in folder.glob("readers/*"):
        numbered = [path for path in log.iterdir() if re.fullmatch("[0-9]{20}", path.name)]
        records[log.name] = json.loads(envelope(max(numbered).read_bytes()))
    return records


def newest_root(folder: Path) -> dict[str, Any]:
    """Return the newest root, found by listing (FORMAT.md 4.3)."""
    names = [p.name for p in (folder / "log").iterdir() if re.fullmatch("[0-9]{20}", p.name)]
    root = json.loads(envelope((folder / "log" / max(names)).read_bytes()))
    assert root["format"] == 1
    assert root["version"] == int(max(names))
    return root


def checked(path: Path, size: int, digest: str) -> bytes:
    """Return a status object whose length and digest are right."""
    data = path.read_bytes()
    assert len(data) == size
    assert hashlib.blake2b(data, digest_size=16).hexdigest() == digest
    return data


def envelope(data: bytes) -> bytes:
    """Return the body of a metadata file (FORMAT.md 2)."""
    version, header, stored = data.split(b"\n", 2)
    assert version == b"v1"
    codec, stored_bytes, raw_bytes, digest = header.split(b" ")
    assert len(stored) == int(stored_bytes)
    covered = b" ".join((codec, stored_bytes, raw_bytes)) + stored
    assert hashlib.blake2b(covered, digest_size=16).hexdigest().encode() == digest
    body = {b"plain": lambda: stored, b"zstd": lambda: zstandard.decompress(stored)}[codec]()
    assert len(body) == int(raw_bytes)
    return body


def level_rows(path: Path, size: int, digest: str) -> list[list[Any]]:
    """Return the entries of a status part of packed columns (FORMAT.md 5)."""
    data = path.read_bytes()
    assert hashlib.blake2b(data[:size], digest_size=16).hexdigest() == digest
    header, columns = unpacked(envelope(data[:size]))
    odd = dict(zip(columns.get("odd_rows", []), columns.get("odd_paths", []), strict=True))
    stats: list[str | None] = []
    for rows, length, chunk_digest in header["stats"]:
        chunk, size = data[size : size + length], size + length
        if not length:
            stats += [None] * rows
            continue
        assert hashlib.blake2b(chunk, digest_size=16).hexdigest() == chunk_digest
        stats += json.loads(envelope(chunk))
    assert size == len(data)
    found = []
    for row in range(header["rows"]):
        one = {name: values[row] for name, values in columns.items() if len(values) > row}
        form, ending = columns["kind_names"][columns["kinds"][row]]
        token = f"{columns['versions'][row]:020d}-{columns['nonces'][row].hex()}"
        numbers = "-".join(str(columns[name][row]) for name in ("tasks", "attempts", "places"))
        place = odd.get(row, f"{token}/{numbers}{ending}")
        facts = [one["rows"], one["bytes"], one["footer_bytes"]]
        crc = int.from_bytes(one["crcs"], "little")
        segment_id = one["epochs"] << 32 | one["numbers"]
        found.append([segment_id, place, *facts, crc, form, stats[row]])
    return found


def unpacked(body: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header and the columns of packed columns (FORMAT.md 5.1)."""
    start = 4 + int.from_bytes(body[:4], "little")
    header = json.loads(body[4:start])
    columns: dict[str, Any] = {}
    for name, kind, *rest in header["columns"]:
        if kind == "json":
            columns[name] = json.loads(body[start : start + rest[0]])
            start += rest[0]
        elif kind == "raw":
            count, width = rest
            columns[name] = [body[start + n * width :][:width] for n in range(count)]
            start += count * width
        else:
            count, order, first, base, width = rest
            planes = [body[start + p * count : start + (p + 1) * count] for p in range(width)]
            values = [sum(p[n] << 8 * i for i, p in enumerate(planes)) for n in range(count)]
            values = [value + base for value in values]
            if order == 1:
                values[0] = first
                values = list(itertools.accumulate(values))
            columns[name] = values
            start += count * width
    assert start == len(body)
    return header, columns


def segment(
    folder: Path, entry: list[Any], schemas: dict[int, pa.Schema], wanted: pa.Schema
) -> pa.Table:
    """Return the events of a segment in the newest schema (FORMAT.md 6 and 7)."""
    segment_id, path, rows, size, end_bytes, end_crc, form, _ = entry
    data = (folder / "segments" / path).read_bytes()
    assert len(data) == size
    assert zlib.crc32(data[-end_bytes:]) == end_crc
    read = {"arrow": read_arrow, "parquet": read_parquet}[form]
    table = read(data, end_bytes, schemas[segment_id >> 32])
    assert table.num_rows == rows
    columns = [
        table[field.name].cast(field.type)
        if field.name in table.schema.names
        else pa.nulls(rows, field.type)
        for field in wanted
    ]
    return pa.Table.from_arrays(columns, schema=wanted)


def read_parquet(data: bytes, end_bytes: int, schema: pa.Schema) -> pa.Table:
    """Return the events of a segment of this format (FORMAT.md 6.1)."""
    length, magic = struct.unpack("<I4s", data[-8:])
    assert (data[:4], magic, length + 8) == (b"PAR1", b"PAR1", end_bytes)
    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    stored = base64.b64decode(file.metadata.metadata[b"segstore"], validate=True)
    facts = json.loads(zstandard.decompress(stored))
    assert facts["version"] == 1
    index, start = facts["index"], 4
    groups = zip(
        *(index[name] for name in ("bytes", "rows", "crc", "schema")),
        facts["lengths"],
        facts["crcs"],
        strict=True,
    )
    for number, (size, rows, crc, place, lengths, crcs) in enumerate(groups):
        assert zlib.crc32(data[start : start + size]) == crc
        assert index["schemas"][place] == fingerprint(schema)
        assert (file.metadata.row_group(number).num_rows, sum(lengths)) == (rows, size)
        for piece_bytes, piece_crc in zip(lengths, crcs, strict=True):
            assert zlib.crc32(data[start : start + piece_bytes]) == piece_crc
            start += piece_bytes
    assert start == len(data) - end_bytes
    assert number + 1 == file.metadata.num_row_groups
    table = file.read()
    # Fields of lists and maps are called as Parquet calls them: equal, as types.
    assert [field.type for field in table.schema] == [field.type for field in schema]
    return pa.Table.from_arrays(table.columns, schema=schema)


def read_arrow(data: bytes, end_bytes: int, schema: pa.Schema) -> pa.Table:
    """Return the events of a segment of this format (FORMAT.md 6)."""
    size = len(data)
    magic, version = struct.unpack_from("<8sI", data)
    assert (magic, version) == (b"SEGARROW", 1)
    assert data[12:60] == bytes(48)
    assert struct.unpack_from("<I", data, 60)[0] == zlib.crc32(data[:60])
    trailer = data[-40:]
    place, length, raw, crc, version, reserved = struct.unpack_from("<QIIIII", trailer)
    assert struct.unpack_from("<I8s", trailer, 28) == (zlib.crc32(trailer[:28]), b"SEGATAIL")
    assert (version, reserved, place + length + 40, length + 40) == (1, 0, size, end_bytes)
    footer = data[place : place + length]
    assert zlib.crc32(footer) == crc
    index = json.loads(zstandard.decompress(footer, max_output_size=raw))
    batches, start = [], 64
    facts = zip(*(index[name] for name in ("bytes", "rows", "crc", "schema")), strict=True)
    for frame_bytes, frame_rows, frame_crc, place_of_schema in facts:
        frame = data[start : start + frame_bytes]
        assert frame_bytes % 64 == 0
        assert zlib.crc32(frame) == frame_crc
        assert index["schemas"][place_of_schema] == fingerprint(schema)
        (batch,) = list(pa.ipc.open_stream(frame))
        assert batch.num_rows == frame_rows
        batches.append(batch)
        start += frame_bytes
    assert start == place
    return pa.Table.from_batches(batches, batches[0].schema)


def fingerprint(schema: pa.Schema) -> str:
    """Return the fingerprint of a schema (FORMAT.md 6)."""
    text = json.dumps([describe(field) for field in schema], sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()[:16]


def describe(field: pa.Field) -> dict[str, Any]:
    """Return what a fingerprint covers of a field."""
    pairs = (field.metadata or {}).items()
    metadata = {key.decode("latin-1"): value.decode("latin-1") for key, value in pairs}
    kind = field.type
    described: Any = str(kind)
    if pa.types.is_struct(kind):
        described = {"struct": [describe(kind.field(n)) for n in range(kind.num_fields)]}
    elif pa.types.is_map(kind):
        described = {"map": [describe(kind.key_field), describe(kind.item_field)]}
    elif pa.types.is_list(kind):
        described = {"list": [describe(kind.value_field)]}
    return {
        "name": field.name,
        "type": described,
        "nullable": field.nullable,
        "metadata": metadata,
    }
