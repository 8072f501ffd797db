"""What tests of crafted metadata and segments share: lies in a stream, and what is then done."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from crash_kit import discard, events, files_of, fresh_storage, memory_limit, restore
from faults import FaultStorage

from segstore_ds.errors import SegstoreError
from segstore_ds.format.envelope import encode_envelope, envelope_digest
from segstore_ds.format.root import encode_root
from segstore_ds.storage import Storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

SECRET = b"what lies outside the stream"
MEMORY = 768 << 20
LONGEST_S = 20.0
NEWEST = "log/00000000000000000005"
_INSIDE = re.compile(
    r"((log|status|twins|history|segments|readers|_delta_log|metadata|delta|iceberg)(/[A-Za-z0-9][\w.-]*)*(/_latest|/_unused\.json)?)?"
)


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


def root_json(storage: Storage) -> dict[str, Any]:
    """Return the newest root as JSON."""
    return json.loads(encode_root(open_on(storage)._log.root))


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
    """Do everything with the stream: each step is refused, or harmless, and soon over.

    Afterwards the stream is as before.
    """
    before = files_of(storage)
    began = time.process_time()
    errors: list[SegstoreError] = []
    watched = FaultStorage(storage)
    copy = fresh_storage("memory", Path())
    steps: list[Callable[[Stream], object]] = [
        lambda stream: stream.read(filters=[["n", ">=", 0]]).read_all(),
        lambda stream: stream.read().read_all(),
        lambda stream: stream.verify().check(),
        lambda stream: stream.read("2020-01-01T00:00:00Z").read_all(),
        lambda stream: stream.history().read_all(),
        lambda stream: stream.copy_to(copy.url, copy_id="c"),
        lambda stream: stream.append(events(0, 1), writer_id="v", batch_id=1),
        lambda stream: stream.compact(),
        lambda stream: stream.truncate(9),
        lambda stream: stream.overwrite(events(0, 1)),
        lambda stream: stream.maintain(keep=0),
        lambda stream: stream.maintain(grace=0, short_grace=True),
    ]
    with memory_limit(MEMORY):
        for step in steps:
            try:
                step(open_on(watched))
            except SegstoreError as error:
                errors.append(error)
    took = time.process_time() - began
    discard(copy)
    discard(storage)
    restore(storage, before)
    assert errors or not refused
    assert not any(SECRET.decode() in str(error) for error in errors)
    paths = {call.partition(" ")[2] for call in watched.calls}
    assert all(_INSIDE.fullmatch(path) for path in paths), paths
    assert took < LONGEST_S


def put_part(storage: Storage, body: bytes, raw: bytes | None = None) -> None:
    """Put a part's body, and a root that refers to it by the right digest."""
    data = raw if raw is not None else encode_envelope(body)
    root = open_on(storage)._log.root
    path = f"status/{0:020d}-segments-{envelope_digest(data)}"
    storage.put(path, data)
    part = replace(root.parts[0], path=path, bytes=len(data))
    plant(storage, encode_root(replace(root, parts=(part, *root.parts[1:]))))
