"""A writer that knows only FORMAT.md and segstore write to one stream, one after another."""

import ast
from pathlib import Path

import golden_writer
import pyarrow as pa
import pytest
from golden_reader import read_stream

import segstore_ds as segstore
from segstore_ds.stream.stream import Stream

SCHEMA = pa.schema([("n", pa.int64()), ("word", pa.string())])


def events(start: int, end: int) -> pa.RecordBatch:
    """Return the events start to end."""
    numbers = list(range(start, end))
    return pa.record_batch({"n": numbers, "word": [f"w{n}" for n in numbers]}, SCHEMA)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a stream that the writer has made."""
    golden_writer.create(tmp_path / "s", SCHEMA)
    return tmp_path / "s"


def check(folder: Path, count: int) -> Stream:
    """Check that segstore and the reader that knows only the format read events 0 to `count`."""
    stream = segstore.open(folder)
    stream.verify().check()
    expected = pa.table(events(0, count))
    assert stream.read().read_all().equals(expected)
    assert read_stream(folder)[2].equals(expected)
    return stream


def test_stream_of_the_writer_is_read_and_sound(folder: Path) -> None:
    check(folder, 0)
    golden_writer.append(folder, events(0, 3))
    golden_writer.append(folder, events(3, 7))
    rows = check(folder, 7).history().read_all()
    assert rows["operation"].to_pylist() == ["create", "append", "append"]
    assert rows["rows"].to_pylist() == [0, 3, 4]


def test_writer_and_segstore_take_turns(folder: Path) -> None:
    """The writer carries inline events on, and segstore the writer's segments."""
    stream = segstore.open(folder)
    for start in range(0, 40, 4):
        stream.append(events(start, start + 2))
        golden_writer.append(folder, events(start + 2, start + 4))
    check(folder, 40)


def test_part_of_the_writer_is_read_and_merged(folder: Path) -> None:
    for start in (0, 2, 4):
        golden_writer.append(folder, events(start, start + 2))
        golden_writer.move_to_part(folder)
    stream = check(folder, 6)
    stream.compact()
    golden_writer.append(folder, events(6, 9))
    stream = check(folder, 9)
    stream.maintain()
    check(folder, 9)


def test_batch_of_a_writer_id_is_committed_once_whoever_repeats_it(folder: Path) -> None:
    assert golden_writer.append(folder, events(0, 3), writer_id="etl", batch_id=1)
    assert not golden_writer.append(folder, events(0, 3), writer_id="etl", batch_id=1)
    stream = segstore.open(folder)
    assert stream.append(events(0, 3), writer_id="etl", batch_id=1).repeated
    assert not stream.append(events(3, 5), writer_id="etl", batch_id=2).repeated
    assert not golden_writer.append(folder, events(3, 5), writer_id="etl", batch_id=2)
    check(folder, 5)


def test_writer_that_loses_a_race_commits_behind_the_winner(folder: Path) -> None:
    stream = segstore.open(folder)
    assert golden_writer.append(folder, events(2, 4), between=lambda: stream.append(events(0, 2)))
    check(folder, 4)


@pytest.mark.parametrize("head", [1, 4, 5, 6, 9])
def test_segments_below_a_head_that_the_writer_moved_are_retired(folder: Path, head: int) -> None:
    """Within a part, at its end, within a segment, at its end, and at the tail."""
    for start in (0, 2):
        golden_writer.append(folder, events(start, start + 2))
    golden_writer.move_to_part(folder)
    for start in (4, 6):
        golden_writer.append(folder, events(start, start + 2))
    golden_writer.append(folder, events(8, 9))
    golden_writer.truncate(folder, head)
    stream = segstore.open(folder)
    stream.verify().check()
    assert (stream.head, stream.tail) == (head, 9)
    assert stream.read().read_all().equals(pa.table(events(head, 9)))
    assert read_stream(folder)[2].equals(pa.table(events(head, 9)))
    report = stream.maintain(keep=0, grace=0, short_grace=True)
    waiting = [item for item in report.kept if item.path.startswith("segments/")]
    assert len(waiting) == 2 * (head >= 4) + (head >= 6) + (head >= 8) + (head >= 9)
    assert all(item.dropped == 7 for item in waiting)


def test_retention_waits_for_the_writers_named_reader(folder: Path) -> None:
    for start in range(0, 8, 2):
        golden_writer.append(folder, events(start, start + 2))
    golden_writer.register(folder, "etl", 2)
    stream = segstore.open(folder)
    assert stream.retain(max_bytes=0).head == 2
    golden_writer.publish(folder, "etl", 4)
    assert stream.readers["etl"].record.offset == 4
    assert stream.retain(max_bytes=0).head == 4
    stream.readers.register("etl").publish(6)
    assert golden_writer.read_position(folder, "etl")["offset"] == 6
    golden_writer.publish(folder, "etl", 8)
    assert stream.retain(max_bytes=0).head == 8
    stream.verify().check()


def test_writer_shares_no_code() -> None:
    tree = ast.parse(Path(golden_writer.__file__).read_text(encoding="utf-8"))
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name) or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert not [name for name in imported if name.startswith("segstore")]
