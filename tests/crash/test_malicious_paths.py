"""Metadata that names what is outside the stream: nothing there is read or written."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crash_kit import content_on
from malicious_kit import NEWEST, attack, plant, put_back, put_part, root_json

from segstore_ds.errors import FormatError
from segstore_ds.format.status import encode_part
from segstore_ds.storage import Storage
from segstore_ds.stream import open_on
from segstore_ds.testing.faults import FaultStorage

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
