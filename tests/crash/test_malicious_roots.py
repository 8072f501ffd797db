"""Roots and status parts that somebody crafted, with right digests: typed errors, little memory."""

import base64
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from crash_kit import content_on, events, files_of, fresh_storage, restore
from limits import memory_limit
from malicious_kit import (
    BODIES,
    LONGEST_S,
    MEMORY,
    NEWEST,
    attack,
    plant,
    put_back,
    put_part,
    root_json,
)

from segstore_ds.errors import FormatError, NotFoundError, SegstoreError
from segstore_ds.format.arrow.segment import HEADER_BYTES
from segstore_ds.format.envelope import digest_of
from segstore_ds.format.parts.rows import ROWS_LIMIT, encode_rows
from segstore_ds.storage import Storage
from segstore_ds.stream.opening import open as open_on

pytestmark = pytest.mark.slow

HUGE = [2**63 - 1, 2**62, 2**53, 2**32, 10**9]


def test_huge_numbers_are_refused_or_harmless(storage: Storage) -> None:
    """Huge counts, sizes and versions cost neither memory nor time."""
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


@pytest.mark.parametrize("name", BODIES)
def test_bodies_that_are_no_root_are_refused(storage: Storage, name: str) -> None:
    """Deep, wide, empty or foreign JSON in a commit file: a format error."""
    plant(storage, BODIES[name])
    with memory_limit(MEMORY), pytest.raises(FormatError):
        open_on(storage)
    attack(storage)


CARRIED = {"an object", "null", "a list", "many lists", "many objects", "lists just deep enough"}
CARRIED |= {"lone surrogates"}
READ_ONLY = {"a long exponent"}  # what JSON can say and Python not repeat


@pytest.mark.parametrize("name", BODIES)
def test_unknown_fields_may_hold_anything(storage: Storage, name: str) -> None:
    """The same as the value of a field that this version does not know: refused, or carried."""
    root = root_json(storage)
    body = json.dumps(root).encode()[:-1] + b',"later":' + BODIES[name] + b"}"
    plant(storage, body)
    attack(storage, refused=False)
    if name in READ_ONLY:
        assert content_on(storage)[1] == 10
        with pytest.raises(FormatError):
            open_on(storage).append(events(10, 11))
        return
    if name not in CARRIED:
        with pytest.raises(FormatError):
            open_on(storage)
        return
    given = json.loads(BODIES[name])
    assert root_json(storage)["later"] == given
    stream = open_on(storage)
    stream.append(events(10, 11))
    stream.compact()
    assert root_json(storage)["later"] == given
    assert content_on(storage)[1] == 11


@pytest.mark.parametrize("name", BODIES)
def test_statistics_and_schemas_may_hold_anything(storage: Storage, name: str) -> None:
    """The same as a segment's statistics, and as Spark's JSON of the schema."""
    good = storage.get(NEWEST)
    text = BODIES[name].decode("latin-1")[:60_000]
    root = root_json(storage)
    root["entries"][0][7] = text
    plant(storage, json.dumps(root).encode())
    attack(storage, refused=name not in {"an object", "lone surrogates"})  # of unknown labels
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
    """A quarter gigabyte of zeros in a few kilobytes is refused, also with a false size."""
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


@pytest.mark.parametrize("kind", ["rows", "nothing", "no end"])
def test_crafted_parts_are_refused(storage: Storage, kind: str) -> None:
    """Rows with a right digest that are too many, lack columns, or break off."""
    rows = ROWS_LIMIT + 1 if kind == "rows" else 3
    body = encode_rows(pa.record_batch([pa.array(np.zeros(rows, np.int64))], ["x"]))
    put_part(storage, body[:-30] if kind == "no end" else body)
    why = {"rows": "too many rows", "nothing": "epochs", "no end": "cannot be decoded"}
    with memory_limit(128 << 20), pytest.raises(FormatError, match=why[kind]):
        content_on(storage)
    attack(storage)


def test_base64_that_is_no_schema_is_refused(storage: Storage) -> None:
    """Every change of a byte of the stored schema is refused or changes nothing that is read."""
    good, right = storage.get(NEWEST), content_on(storage)
    text = base64.b64decode(root_json(storage)["epochs"][0]["schema"])
    outcomes = {"read": 0, "refused": 0}
    for place in range(len(text)):
        changed = bytearray(text)
        changed[place] ^= 0xFF
        root = root_json(storage)
        root["epochs"][0]["schema"] = base64.b64encode(changed).decode()
        plant(storage, json.dumps(root).encode())
        with memory_limit(MEMORY):
            try:
                found = content_on(storage)
            except FormatError:
                outcomes["refused"] += 1
            else:
                assert found == right, place
                outcomes["read"] += 1
        put_back(storage, good)
    assert min(outcomes.values()) > 20, outcomes


def test_empty_folder_and_foreign_files_are_no_stream(tmp_path: Path) -> None:
    """Other files, also in a folder called log, are not taken for a stream."""
    storage = fresh_storage("local", tmp_path)
    restore(storage, {"log/41": b"x", "log/_latest": b"41", "log/x/00000000000000000000": b"x"})
    with pytest.raises(NotFoundError):
        open_on(storage)
    assert HEADER_BYTES == 64
    assert len(files_of(storage)) == 3
