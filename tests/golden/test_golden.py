"""Streams written by every format so far, read by segstore and by a reader that shares no code."""

import json
import shutil
from pathlib import Path

import make_golden
import pytest
from golden_reader import newest_root, read_stream
from make_golden import LATER, STREAMS, as_json, events

import segstore_ds as segstore
from segstore_ds.errors import TruncatedError, UnsupportedVersionError
from segstore_ds.storage import open_storage

HERE = Path(__file__).parent
FOLDERS = sorted(path for version in HERE.glob("v*") for path in version.iterdir() if path.is_dir())
READABLE = [path for path in FOLDERS if path.name != "unknown-reader-feature"]
FIRST = HERE / "v1"


def name_of(folder: Path) -> str:
    """Return the id of a golden stream."""
    return f"{folder.parent.name}-{folder.name}"


def expected(folder: Path) -> dict[str, object]:
    """Return what has to be read from a golden stream."""
    return json.loads(folder.with_name(f"{folder.name}.json").read_text(encoding="utf-8"))


def copied(folder: Path, to: Path) -> Path:
    """Return a copy of a golden stream, to write to."""
    return Path(shutil.copytree(folder, to / folder.name))


def test_the_first_format_is_complete() -> None:
    """Every kind of stream is there, and nobody deleted one."""
    assert {path.name for path in FOLDERS if path.parent == FIRST} == set(STREAMS)


@pytest.mark.parametrize("folder", READABLE, ids=name_of)
def test_segstore_reads_golden_stream(folder: Path) -> None:
    """Values, schema, cuts and version are those of the day it was written; it verifies."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    stream = segstore.open(folder)
    assert make_golden.expected(stream.storage) == expected(folder)
    report = stream.verify().check()
    assert report.rows >= stream.tail - stream.head
    assert report.leftovers == []
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("folder", READABLE, ids=name_of)
def test_reader_that_knows_only_the_format_reads_golden_stream(folder: Path) -> None:
    """FORMAT.md says enough to read every stream, with all checksums right."""
    head, tail, table = read_stream(folder)
    known = expected(folder)
    assert (head, tail) == (known["head"], known["tail"])
    assert {field.name: str(field.type) for field in table.schema} == known["schema"]
    rows = [{name: as_json(value) for name, value in row.items()} for row in table.to_pylist()]
    assert rows == known["rows"]


@pytest.mark.parametrize("folder", READABLE, ids=name_of)
def test_golden_stream_goes_on(folder: Path, tmp_path: Path) -> None:
    """Today's version appends to a stream of any format, and the old reader reads that too."""
    if folder.name == "unknown-writer-feature":
        return
    stream = segstore.open(copied(folder, tmp_path))
    tail, rows = stream.tail, stream.read().read_all()
    stream.append(rows.slice(0, 1) if rows.num_rows else events(0, 1))
    stream.verify().check()
    head, end, table = read_stream(tmp_path / folder.name)
    assert (head, end, table.num_rows) == (stream.head, tail + 1, tail + 1 - head)


@pytest.mark.parametrize("name", sorted(STREAMS))
def test_todays_code_still_writes_the_first_format(name: str, tmp_path: Path) -> None:
    """A stream written today is read by the reader that knows only FORMAT.md."""
    make_golden.write_stream(open_storage(tmp_path / name), name)
    if name == "unknown-reader-feature":
        return
    head, tail, table = read_stream(tmp_path / name)
    known = expected(FIRST / name)
    assert (head, tail, table.num_rows) == (known["head"], known["tail"], len(known["rows"]))


def test_unknown_reader_feature_is_refused() -> None:
    """A stream that this version could misread isn't opened, and no older version of it either."""
    with pytest.raises(UnsupportedVersionError, match="a-later-feature"):
        segstore.open(FIRST / "unknown-reader-feature")
    with pytest.raises(NotImplementedError, match="a-later-feature"):
        read_stream(FIRST / "unknown-reader-feature")


def test_unknown_writer_feature_is_read_only(tmp_path: Path) -> None:
    """Reading goes on; every change is refused, and nothing is left behind."""
    folder = copied(FIRST / "unknown-writer-feature", tmp_path)
    before = sorted(folder.rglob("*"))
    stream = segstore.open(folder)
    assert stream.read().read_all().equals(events(0, 3))
    for change in (
        lambda: stream.append(events(3, 4)),
        lambda: stream.append(events(3, 4), writer_id="w", batch_id=1),
        lambda: stream.overwrite(events(3, 4)),
    ):
        with pytest.raises(UnsupportedVersionError, match="a-later-feature"):
            change()
    assert [p for p in sorted(folder.rglob("*")) if p.is_file()] == [
        p for p in before if p.is_file()
    ]


def test_unknown_fields_are_carried_through(tmp_path: Path) -> None:
    """Top-level fields of a newer version come through our commits unchanged."""
    stream = segstore.open(copied(FIRST / "unknown-fields", tmp_path))
    stream.append(events(3, 4))
    stream.overwrite(events(9, 10), writer_id="w", batch_id=1)
    root = newest_root(tmp_path / "unknown-fields")
    assert root["version"] == 4
    assert {name: root[name] for name in LATER} == LATER
    stream.verify().check()


def test_batches_of_golden_writers_are_known(tmp_path: Path) -> None:
    """A batch that was committed then is a repeat now, inline or in a blob."""
    stream = segstore.open(copied(FIRST / "writers", tmp_path))
    assert stream.root.writers_blob is not None
    for writer, batch in [("writer 0", 9), ("writer 1", 1), ("writer 5", 5)]:
        assert stream.append(events(0, 1), writer_id=writer, batch_id=batch).repeated
    assert stream.refresh().tail == expected(FIRST / "writers")["tail"]


def test_golden_overwrite_keeps_its_head() -> None:
    """What was overwritten then is below the head now."""
    stream = segstore.open(FIRST / "overwritten")
    assert stream.read().read_all()["n"].to_pylist() == [10, 11, 12, 20, 21]
    with pytest.raises(TruncatedError):
        stream.read(0)


def test_golden_streams_are_never_written_over() -> None:
    """The generator refuses a version that is there."""
    with pytest.raises(SystemExit, match="not empty"):
        make_golden.main(FIRST)
