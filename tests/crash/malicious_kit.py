"""What tests of crafted metadata and segments share: lies in a stream, and what is then done."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from crash_kit import events
from limits import memory_limit

from segstore_ds.errors import SegstoreError
from segstore_ds.format.envelope import digest_of, encode_envelope
from segstore_ds.format.root_codec import encode_root
from segstore_ds.storage import Storage
from segstore_ds.stream import open_on

SECRET = b"what lies outside the stream"
MEMORY = 768 << 20
LONGEST_S = 20.0
NEWEST = "log/00000000000000000005"


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


def put_part(storage: Storage, body: bytes, raw: bytes | None = None) -> None:
    """Put a part's body, and a root that refers to it by the right digest."""
    data = raw if raw is not None else encode_envelope(body)
    root = open_on(storage).root
    path = f"status/{0:020d}-part-{digest_of(data)}"
    storage.put(path, data)
    part = replace(root.parts[0], path=path, bytes=len(data), digest=digest_of(data))
    plant(storage, encode_root(replace(root, parts=(part, *root.parts[1:]))))
