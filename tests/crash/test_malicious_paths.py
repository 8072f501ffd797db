"""Metadata that names what is outside the stream: nothing there is read or written."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crash_kit import SCHEMA, content_on, discard, events, files_of, restore
from faults import FaultStorage
from malicious_kit import SECRET, attack, plant, root_json

from segstore_ds.errors import FormatError
from segstore_ds.format.names import segment_token
from segstore_ds.format.root import PartRef, Retired, SegmentEntry, to_json
from segstore_ds.replication.follower import PROPERTY
from segstore_ds.status.history import History
from segstore_ds.status.table_status import TableStatus
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.write.layout import Layout

pytestmark = pytest.mark.slow

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


def snapshot(folder: Path) -> dict[str, bytes]:
    """Return every file around a stream, the stream's own aside."""
    above = folder.parent
    around = {path: path.read_bytes() for path in above.rglob("*") if path.is_file()}
    return {str(p): data for p, data in around.items() if not p.is_relative_to(folder)}


KINDS = ("segment", "status", "part")
# Fields of a root that name an object, with a path in them.
PATHS: dict[str, Callable[[dict[str, Any], str], object]] = {
    "entries": lambda root, path: _first_with(root["entries"], 1, path),
    "parts": lambda root, path: _first_with(root["parts"], 0, path),
    "epochs": lambda root, path: [
        {**root["epochs"][0], "schema": None, "spark": None, "blob": [path, 10, 1]}
    ],
    "writers_parts": lambda _, path: [[path, 0, 1, 1, 10, 0, 0, None]],
    "retired": lambda _, path: [[kind, path, 1, 1] for kind in KINDS],
    "retired_parts": lambda _, path: [[path, 0, 1, 1, 10, 0, 0, None]],
    "lists": lambda _, path: [[path, 0, 6, 3, 10, 0, 0, None]],
    "history_parts": lambda _, path: [[path, 0, 1, 1, 10, 1, 1, None]],
    "history_lists": lambda _, path: [[path, 0, 1, 1, 10, 1, 1, None]],
}


def _first_with(rows: list[list[Any]], place: int, path: str) -> list[list[Any]]:
    return [[*rows[0][:place], path, *rows[0][place + 1 :]], *rows[1:]]


@pytest.mark.parametrize("field", PATHS)
def test_paths_that_leave_the_stream_are_refused(home: Path, storage: Storage, field: str) -> None:
    """Each place in a root that names an object refuses whatever is not an object's name."""
    root, around = root_json(storage), snapshot(home)
    for path in OUTSIDE:
        plant(storage, json.dumps({**root, field: PATHS[field](root, path)}).encode())
        with pytest.raises(FormatError, match=r"path in metadata is not a|at most 300"):
            open_on(storage)
    attack(storage)
    assert snapshot(home) == around


def _crafted(storage: Storage, path: str) -> PartRef:
    root = replace(open_on(storage)._log.root, version=0)
    return TableStatus(storage).put_part(root, 0, crafted_entries(storage, path))


def _part(storage: Storage, path: str) -> dict[str, Any]:
    part = _crafted(storage, path)
    return {"parts": [to_json(part), *root_json(storage)["parts"][1:]]}


def _index(storage: Storage, path: str) -> dict[str, Any]:
    status, (first, *parts) = TableStatus(storage), open_on(storage)._log.root.parts
    index = status.table.put_list(0, (replace(first, path=path),))
    return {"lists": [to_json(index)], "parts": [to_json(part) for part in parts]}


def _retired_part(storage: Storage, path: str) -> dict[str, Any]:
    part = _crafted(storage, path)
    return {"retired": [["part", part.path, 1, 1]]}


def _retired_rows(storage: Storage, path: str) -> dict[str, Any]:
    items = tuple(Retired(kind, path, 1, 1) for kind in KINDS)
    return {"retired_parts": [to_json(TableStatus(storage).retired.put(0, items))]}


def _history_list(storage: Storage, path: str) -> dict[str, Any]:
    first, *rows = open_on(storage)._log.root.history
    part = PartRef(path, 0, 1, 1, 10, first.time_us, first.time_us)
    history = History(storage).put_list(0, (part,))
    kept = root_json(storage)["history"][-len(rows) :]
    return {"history_lists": [to_json(history)], "history": kept}


OLD = {"log_start": 4}  # what was retired before may go
OBJECTS: list[Callable[[Storage, str], dict[str, Any]]] = [
    _part,
    _index,
    _retired_part,
    _retired_rows,
    _history_list,
]


def crafted_entries(storage: Storage, path: str) -> tuple[SegmentEntry, ...]:
    """Return the entries of the oldest part, the first of them elsewhere."""
    stream = open_on(storage)
    first, *entries = stream._context.status.table.entries(stream._log.root.parts[0])
    return replace(first, path=path), *entries


@pytest.mark.background_upkeep  # what it would delete is among what is refused
@pytest.mark.parametrize("build", OBJECTS, ids=lambda build: build.__name__.strip("_"))
def test_paths_in_objects_are_refused(home: Path, storage: Storage, build: Any) -> None:
    """An object of right digest that names something outside is refused when it is read."""
    good, around = files_of(storage), snapshot(home)
    for path in OUTSIDE[::4]:
        changed = build(storage, path)
        plant(storage, json.dumps(root_json(storage) | OLD | changed).encode())
        report = open_on(storage).verify()
        assert re.search(r"path in metadata is not a|at most 300", str(report.problems)), report
        with pytest.raises(FormatError):
            open_on(storage).maintain(grace=0, short_grace=True)
        attack(storage)
        discard(storage)
        restore(storage, good)
    assert snapshot(home) == around


def test_retired_objects_inside_the_stream_are_deleted(storage: Storage) -> None:
    """A check of the other tests: inside the stream the same entries are deleted."""
    storage.put("segments/a/b", b"x")
    root = root_json(storage) | OLD | {"retired": [["segment", "a/b", 1, 1]]}
    plant(storage, json.dumps(root).encode())
    open_on(storage).maintain(grace=0, short_grace=True)
    assert not list(storage.list("segments/a"))


def _followed(url: str, storage: Storage) -> dict[str, Any]:
    text = json.dumps({"primary": storage.url, "followers": [url]})
    return {"properties": {PROPERTY: text}}


def _primary(url: str, _storage: Storage) -> dict[str, Any]:
    text = json.dumps({"primary": url, "followers": []})
    return {"properties": {PROPERTY: text}}


def _origin(url: str, storage: Storage) -> dict[str, Any]:
    entries = root_json(storage)["entries"]
    entries[0][1] = f"{segment_token(entries[0][1])}/elsewhere.arrow"
    return {"entries": entries, "origins": {"x": {"url": url, "pin": "p", "version": 1}}}


@pytest.mark.parametrize("build", [_followed, _primary, _origin])
@pytest.mark.parametrize("floor", [0, 4])
def test_folders_that_metadata_names_are_left_alone(
    home: Path, storage: Storage, build: Any, floor: int
) -> None:
    """A follower, a primary, an origin that is another stream, a folder of files, or nothing.

    Its objects are as old as what vacuum deletes here, and named by no version of this stream.
    """
    victim = create_on(open_storage(home.parent / "victim"), SCHEMA)
    for batch in range(3):
        victim.append(events(batch, batch + 1), layout=Layout(inline_bytes=0))
    for name in ("log", "segments", "status"):
        (home.parent / "files" / name).mkdir(parents=True)
        (home.parent / "files" / name / f"{0:020d}").write_bytes(SECRET)
    around = snapshot(home)
    changes = {"staging_floor": floor, "log_start": floor}
    for name in ("victim", "files", "nothing"):
        url = open_storage(home.parent / name).url
        root = root_json(storage)
        plant(storage, json.dumps(root | changes | build(url, storage)).encode())
        attack(storage)
        plant(storage, json.dumps(root).encode())
    assert snapshot(home) == around
    assert content_on(victim._log.storage)[1] == 3


def test_reading_asks_only_for_objects_of_the_stream(storage: Storage) -> None:
    """Every request of a read stays in the stream's own folders."""
    watched = FaultStorage(storage)
    content_on(watched)
    folders = {call.split(" ", 1)[1].split("/")[0] for call in watched.calls if " " in call}
    assert folders <= {"log", "status", "segments"}
