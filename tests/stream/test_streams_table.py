"""The metadata table `streams`: every stream below a folder, and what could not be read."""

from pathlib import Path

import pytest
from stream_kit import SCHEMA, STAGED, Meddling, numbers

import segstore_ds as segstore
from segstore_ds.copy.event_rows import CopyRequest
from segstore_ds.copy.events import run_copy_events
from segstore_ds.errors import InvalidInputError, NotFoundError
from segstore_ds.log.clock import SYSTEM_CLOCK
from segstore_ds.read.find_streams import STREAMS_SCHEMA
from segstore_ds.retention.drop import run_drop
from segstore_ds.storage import open_storage


class _StoppedError(Exception):
    """What a test ends a copy or a drop with."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}"


def rows_by_path(url: str) -> dict[str, dict[str, object]]:
    return {row["path"]: row for row in segstore.streams(url).to_pylist()}


def test_table_has_a_row_for_each_stream(url: str) -> None:
    for count, name in enumerate(("b", "a/x", "deep/1/y", "deep/1/2/z")):
        stream = segstore.create(f"{url}/{name}", SCHEMA)
        stream.append(numbers(0, 10 * count + 10))
    segstore.open(f"{url}/b").truncate(4)
    segstore.open(f"{url}/b").seal()
    table = segstore.streams(url)
    assert table.schema == STREAMS_SCHEMA
    assert table["path"].to_pylist() == ["a/x", "b", "deep/1/y"]
    row = rows_by_path(url)["b"]
    stream = segstore.open(row["url"])
    info = stream.info()
    assert row == {
        **{name: info[name] for name in STREAMS_SCHEMA.names if name in info},
        "path": "b",
        "url": stream.url,
        "code": None,
        "error": None,
    }
    assert (row["head"], row["tail"], row["events"], row["sealed"]) == (4, 10, 6, True)
    assert "deep/1/2/z" in segstore.streams(url, depth=9)["path"].to_pylist()
    assert list(rows_by_path(f"{url}/b")) == ["."]


def test_what_can_t_be_read_is_a_row_with_its_code(url: str, tmp_path: Path) -> None:
    """One damaged stream hides no other, and is not left out."""
    for name in ("cut", "empty", "good", "loop", "newer", "foreign/inner"):
        segstore.create(f"{url}/{name}", SCHEMA).append(numbers(0, 5))
    newest = f"log/{1:020}"
    data = (tmp_path / "cut" / newest).read_bytes()
    (tmp_path / "cut" / newest).write_bytes(data[:-3])
    (tmp_path / "empty" / newest).write_bytes(b"")
    (tmp_path / "newer" / newest).write_bytes(b"v2" + data[2:])
    loop = tmp_path / "loop" / "link"
    loop.symlink_to(loop)
    (tmp_path / "foreign" / "log").mkdir()
    (tmp_path / "foreign" / "log" / "app.log").write_text("x")
    found = rows_by_path(url)
    assert {path: row["code"] for path, row in found.items()} == {
        "cut": "SEG_TRUNCATED_OBJECT",
        "empty": "SEG_EMPTY_OBJECT",
        "foreign/inner": None,
        "good": None,
        "loop": found["loop"]["code"],
        "newer": "SEG_UNSUPPORTED_VERSION",
    }
    assert found["cut"]["events"] is None
    assert str(found["cut"]["error"]).startswith("SEG_TRUNCATED_OBJECT: ")
    assert found["good"]["events"] == found["foreign/inner"]["events"] == 5


def test_unfinished_drop_says_so_and_an_unfinished_copy_is_no_stream(url: str) -> None:
    source = segstore.create(f"{url}/source", SCHEMA)
    source.append(numbers(0, 5), layout=STAGED)

    def stop() -> None:
        raise _StoppedError

    target = Meddling(open_storage(f"{url}/half"), "create log/", stop)
    request = CopyRequest("c", "head", "tail", seal=False, mode="events")
    with pytest.raises(_StoppedError):
        run_copy_events(source._context, target, request)
    dropped = Meddling(open_storage(source.url), "delete segments/", stop)
    with pytest.raises(_StoppedError):
        run_drop(dropped, confirm=source.url, clock=SYSTEM_CLOCK, client="")
    found = rows_by_path(url)
    assert [(path, row["code"]) for path, row in found.items()] == [("source", "SEG_NOT_FOUND")]
    assert "stream was dropped" in str(found["source"]["error"])


def test_folder_that_is_not_there_is_an_error(url: str, tmp_path: Path) -> None:
    """An empty table would say that the folder was looked through."""
    with pytest.raises(NotFoundError, match="no such folder"):
        segstore.streams(f"{url}/x")
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidInputError):
        segstore.streams(f"{url}/file")
    assert segstore.streams(url).num_rows == 0
    assert segstore.streams(url).schema == STREAMS_SCHEMA
