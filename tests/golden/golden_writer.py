"""A minimal writer of FORMAT.md: it creates a stream on a local disk and appends, without segstore.

It writes plain envelopes, one Arrow segment of one frame per append, moves segments to a part,
truncates, and keeps the position of a named reader.
"""

import base64
import json
import os
import secrets
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import zstandard
from golden_reader import blake, envelope, epoch_schema, fingerprint

ME = secrets.token_hex(4)  # begins this writer's transaction ids
Root = dict[str, Any]


def create(folder: Path, schema: pa.Schema) -> None:
    """Commit the first root of a stream, whose schema is in normal form (3.1, 3.2)."""
    text = base64.b64encode(schema.serialize().to_pybytes()).decode()
    epoch = {"number": 0, "since": 0, "schema": text, "spark": None, "blob": None}
    zeros = "generation version head tail next_segment log_start staging_floor restored"
    tables = [f"{table}{name}" for table in ("", "retired_", "writers_", "history_")
              for name in ("lists", "parts")]  # fmt: skip
    root = {"format": 1, "stream_id": secrets.token_hex(16), "parent": "", "epochs": [epoch]}
    root |= dict.fromkeys(zeros.split(), 0) | {"sealed": False, "dropped": False}
    root |= {name: [] for name in (*tables, "entries", "retired", "history")}
    root |= {name: {} for name in ("writers", "tags", "pins", "origins", "copies", "properties")}
    root |= {"reader_features": [], "writer_features": []}
    first = stamped(root, root, "create", secrets.token_hex(16))
    assert create_new(log_path(folder, 0), wrapped(encoded(first)))
    hint(folder / "log" / "_latest", first)


def append(
    folder: Path,
    batch: pa.RecordBatch,
    *,
    writer_id: str | None = None,
    batch_id: int = 0,
    between: Callable[[], object] = lambda: None,
) -> bool:
    """Append events; False if the writer's batch is committed already (3.2, 3.4, 4.2).

    `between` is called once, after a root was planned and before it is put.
    """
    planned_on = newest(folder)[0]["version"]
    token = f"{planned_on:020d}-{secrets.token_hex(6)}"
    data, facts = arrow_segment(batch)
    put(folder / "segments" / token / "0-0-0.arrow", data)

    def plan(root: Root) -> Root | None:
        assert not root["writers_parts"]  # where a writer may be, too
        known = root["writers"].get(writer_id)
        if known is not None and known[:2] == ["", batch_id]:
            return None
        assert known is None or (known[0] == "" and known[1] < batch_id)
        assert not root["sealed"]
        assert planned_on >= root["staging_floor"]
        epoch = root["epochs"][-1]
        assert batch.schema.equals(epoch_schema([folder], epoch), check_metadata=True)
        number, tail = root["next_segment"], root["tail"] + batch.num_rows
        segment_id = epoch["number"] << 32 | number
        entry = [segment_id, f"{token}/0-0-0.arrow", batch.num_rows, len(data), *facts]
        changed = {"entries": [*root["entries"], entry], "tail": tail, "next_segment": number + 1}
        if writer_id is not None:
            row = ["", batch_id, root["version"] + 1, batch.num_rows, tail, ""]
            changed["writers"] = {**root["writers"], writer_id: row}
        return changed

    return commit(folder, "append", plan, writer=(writer_id, batch_id), between=between)


def move_to_part(folder: Path) -> bool:
    """Move the root's segments to a status part; none of them is inline (5, 5.2)."""

    def plan(root: Root) -> Root:
        entries = root["entries"]
        assert all(entry[8] is None for entry in entries)
        numbers = {
            "epochs": [entry[0] >> 32 for entry in entries],
            "numbers": [entry[0] & 0xFFFFFFFF for entry in entries],
            "rows": [entry[2] for entry in entries],
            "bytes": [entry[3] for entry in entries],
            "footer_bytes": [entry[4] for entry in entries],
            "crcs": [entry[5] for entry in entries],
            "frames": [entry[9] for entry in entries],
            "frame_raws": [entry[10] for entry in entries],
        }
        empty = [0] * len(entries)
        numbers |= dict.fromkeys(("versions", "tasks", "attempts", "places"), empty)
        columns = {name: pa.array(values, pa.int64()) for name, values in numbers.items()}
        columns["nonces"] = pa.array([bytes(6)] * len(entries), pa.binary(6))
        columns["kind"] = pa.array([f"{entry[6]} {entry[1]}" for entry in entries])  # no fields
        data = wrapped(ipc(pa.RecordBatch.from_pydict(columns)))
        name = f"{root['version']:020d}-segments-{header_digest(data)}"
        for place in ("status", "twins"):
            put(folder / place / name, data)
        start = root["tail"] - sum(numbers["rows"])
        row = [f"status/{name}", start, root["tail"], len(entries), len(data), 0, 0, None]
        return {"entries": [], "parts": [*root["parts"], row]}

    return commit(folder, "merge", plan)


def truncate(folder: Path, head: int) -> bool:
    """Move the head up, and retire what lies wholly below it (3.2)."""

    def plan(root: Root) -> Root | None:
        if head <= root["head"]:
            return None
        assert head <= root["tail"]
        assert not root["lists"]
        gone = [row for row in root["parts"] if row[2] <= head]
        parts = root["parts"][len(gone) :]
        retired = [["part", row[0]] for row in gone]
        entries, start = root["entries"], root["tail"] - sum(entry[2] for entry in root["entries"])
        while not parts and entries and start + entries[0][2] <= head:
            start += entries[0][2]
            retired += [["segment", entries[0][1]]]
            entries = entries[1:]
        return {"head": head, "parts": parts, "entries": entries, "dropped_now": retired}

    return commit(folder, "truncate", plan)


def read_position(folder: Path, name: str) -> Root | None:
    """Return the newest record of a named reader; None without one (8)."""
    found = sorted(p.name for p in (folder / "readers" / name).glob("[0-9]*"))
    hinted = folder / "readers" / "_latest" / name
    assert not hinted.exists() or found[-1] >= hinted.read_text().split()[0]
    if not found:
        return None
    record = json.loads(envelope((folder / "readers" / name / found[-1]).read_bytes()))
    assert (record["name"], record["number"]) == (name, int(found[-1]))
    return record


def register(folder: Path, name: str, offset: int) -> None:
    """Register a named reader at an offset, so that retention waits for it (READERS.md, 1 to 3)."""
    publish(folder, name, offset)
    commit(folder, "reader", lambda _: {})
    assert newest(folder)[0]["head"] <= offset


def publish(folder: Path, name: str, offset: int) -> None:
    """Create the next record of a named reader (READERS.md, 4)."""
    root, before = newest(folder)[0], read_position(folder, name) or {"number": -1}
    assert not before.get("members")
    record = {"format": 1, "owner": "", "lapse_s": 3600, "released": False, "provisional": False}
    record |= before | {"name": name, "number": before["number"] + 1, "offset": offset}
    record |= {each: root[each] for each in ("stream_id", "generation", "version", "transaction")}
    record["id"] = secrets.token_hex(8)
    path = folder / "readers" / name / f"{record['number']:020d}"
    assert create_new(path, wrapped(encoded(record)))
    hint(folder / "readers" / "_latest" / name, {**root, "version": record["number"]})


def commit(
    folder: Path,
    operation: str,
    plan: Callable[[Root], Root | None],
    *,
    writer: tuple[str | None, int] = (None, 0),
    between: Callable[[], object] = lambda: None,
) -> bool:
    """Commit what `plan` changes in the newest root; False if that is nothing (4.2)."""
    transaction = f"{ME}{secrets.token_hex(12)}"
    while True:
        root, frames, mark = newest(folder)
        assert not {*root["reader_features"], *root["writer_features"]}
        assert not root["dropped"]
        changed = plan(root)
        if changed is None:
            return False
        after = stamped(root, {**root, **changed}, operation, transaction, writer)
        between()
        between = bool
        if log_path(folder, root["version"]).read_bytes()[:80] != mark:
            continue
        data = wrapped(encoded(after)) + frames
        if create_new(log_path(folder, after["version"]), data):
            hint(folder / "log" / "_latest", after)
            return True
        assert envelope(split(log_path(folder, after["version"]).read_bytes())[0])  # lost


def stamped(
    before: Root,
    root: Root,
    operation: str,
    transaction: str,
    writer: tuple[str | None, int] = (None, 0),
) -> Root:
    """Return a root as the commit that follows another one, with its row of history (5.3)."""
    number = before["version"] + 1 if "transaction" in before else 0
    time_us = max(before.get("time_us", 0), time.time_ns() // 1000)
    known = {entry[0] for entry in before["entries"]}
    new = [entry for entry in root["entries"] if entry[0] not in known]
    row = [number, time_us, operation, root["head"], root["tail"], sum(e[2] for e in new), len(new)]
    row += [sum(entry[3] for entry in new), writer[0], None if writer[0] is None else writer[1]]
    row += ["golden", "", 1, 0, 0, 0, transaction, None]
    retired = [[*each, number, time_us] for each in root.pop("dropped_now", ())]
    stamps = {"version": number, "time_us": time_us, "operation": operation, "client": "golden"}
    stamps |= {"transaction": transaction, "parent": before.get("transaction", "")}
    tables = {"history": [*root["history"], row], "retired": [*root["retired"], *retired]}
    return {**root, **stamps, **tables}


def newest(folder: Path) -> tuple[Root, bytes, bytes]:
    """Return the newest root, the inline frames behind it, and how its file begins (4.3)."""
    names = sorted(p.name for p in (folder / "log").iterdir() if p.name.isdecimal())
    assert [*map(int, names)] == [*range(int(names[0]), int(names[0]) + len(names))]
    data = (folder / "log" / names[-1]).read_bytes()
    body, frames = split(data)
    return json.loads(envelope(body)), frames, data[:80]


def split(data: bytes) -> tuple[bytes, bytes]:
    """Return an envelope, and what lies behind it (2)."""
    version, header, _ = data.split(b"\n", 2)
    end = len(version) + len(header) + 2 + int(header.split(b" ")[1])
    return data[:end], data[end:]


def encoded(root: Root) -> bytes:
    """Return a root as JSON."""
    return json.dumps(root, separators=(",", ":")).encode()


def wrapped(body: bytes) -> bytes:
    """Return a plain envelope (2)."""
    header = b"plain %d %d" % (len(body), len(body))
    return b"v1\n%s %s\n%s" % (header, blake(header + body).encode(), body)


def header_digest(data: bytes) -> str:
    """Return the digest in an envelope's header, which names it (1)."""
    return data.split(b"\n", 2)[1][-32:].decode()


def arrow_segment(batch: pa.RecordBatch) -> tuple[bytes, list[Any]]:
    """Return a segment of one frame, and the cells of its entry from the fifth on (6)."""
    frame = ipc(batch)
    frame += bytes(-len(frame) % 64)
    raw = sum(buffer.size for column in batch.columns for buffer in column.buffers() if buffer)
    index = {"bytes": [len(frame)], "rows": [batch.num_rows], "crc": [zlib.crc32(frame)]}
    index |= {"raw": [raw], "schemas": [fingerprint(batch.schema)], "schema": [0], "stats": [{}]}
    text = json.dumps(index, separators=(",", ":")).encode()
    footer = zstandard.ZstdCompressor(write_content_size=True).compress(text)
    header = struct.pack("<8sI48x", b"SEGARROW", 1)
    header += struct.pack("<I", zlib.crc32(header))
    place, lengths = len(header) + len(frame), (len(footer), len(text))
    trailer = struct.pack("<QIIIII", place, *lengths, zlib.crc32(footer), 1, 0)
    end = footer + trailer + struct.pack("<I8s", zlib.crc32(trailer), b"SEGATAIL")
    facts = [len(end), zlib.crc32(end), "arrow", None, None, 1, -(-raw // 65536)]
    return header + frame + end, facts


def ipc(batch: pa.RecordBatch) -> bytes:
    """Return a batch as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def log_path(folder: Path, number: int) -> Path:
    """Return the file of a version (1)."""
    return folder / "log" / f"{number:020d}"


def create_new(path: Path, data: bytes) -> bool:
    """Create a file whole and durable; False if the name is taken (4.1)."""
    staged = path.with_name(f".tmp-{os.getpid()}-{secrets.token_hex(8)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    put(staged, data)
    try:
        os.link(staged, path)
    except FileExistsError:
        return False
    finally:
        staged.unlink()
    sync_folder(path.parent)
    return True


def put(path: Path, data: bytes) -> None:
    """Write a file, durably."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def hint(path: Path, root: Root) -> None:
    """Write the hint of a log (4.2)."""
    words = f"{root['version']:020d} {root['generation']} {root['stream_id']} {root['transaction']}"
    staged = path.with_name(f".tmp-{os.getpid()}-{secrets.token_hex(8)}")
    put(staged, f"{words} {zlib.crc32(words.encode()):08x}".encode())
    staged.replace(path)
