"""The front door: what users see when they hand in something wrong, and what ranges mean."""

import datetime as dt
import pickle
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from stream_kit import SCHEMA, numbers

import segstore_ds as segstore
from segstore_ds.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    PositionError,
    SchemaMismatchError,
    TruncatedError,
)
from segstore_ds.log.clock import Clock


@pytest.fixture
def stream() -> segstore.Stream:
    """A stream of three commits of ten events, a minute apart."""
    minutes = iter(range(10**6))
    clock = Clock(wall_us=lambda: (1_760_000_000 + 60 * next(minutes)) * 1_000_000)
    made = segstore.create(f"memory://{uuid.uuid4().hex}", SCHEMA, clock=clock)
    made._log.check_clock = lambda _=None: None  # the store's clock is the real one
    for start in (0, 10, 20):
        made.append(numbers(start, start + 10))
    return made


def values(stream: segstore.Stream, *cuts: object, **options: object) -> list[int]:
    """Return the numbers between two cuts."""
    return stream.read(*cuts, columns=["n"], **options).read_all()["n"].to_pylist()


def test_a_handle_pickles_and_sees_what_came_since(tmp_path: Path) -> None:
    """The copy writes, and is copied itself."""
    stream = segstore.create(tmp_path / "s", SCHEMA, upkeep=None)
    data = pickle.dumps(stream)
    stream.append(numbers(0, 4))
    copied = pickle.loads(data)  # noqa: S301 - of this test
    assert (copied.url, copied.version) == (stream.url, 0)
    assert copied.refresh().tail == 4
    assert copied.append({"n": 5}).start == 4
    again = pickle.loads(pickle.dumps(copied))  # noqa: S301 - of this test
    assert again.read().read_all().num_rows == 5


def test_every_form_of_cut(stream: segstore.Stream) -> None:
    """Offsets, words, versions, positions and times name the same places."""
    assert values(stream, 5, 8) == [5, 6, 7]
    assert values(stream, "head", "12") == list(range(12))
    assert values(stream, "version:2", "tail") == list(range(20, 30))
    assert values(stream, "version:0", "version:1") == list(range(10))
    position = stream.position(25)
    assert values(stream, position) == list(range(25, 30))
    assert values(stream, position.to_json()) == list(range(25, 30))
    second = stream._log.read_version(2).time_us
    moment = dt.datetime.fromtimestamp(second / 1e6, tz=dt.UTC)
    assert values(stream, moment) == list(range(20, 30))
    assert values(stream, moment.isoformat()) == list(range(20, 30))
    before = moment - dt.timedelta(microseconds=1)
    assert values(stream, before) == list(range(10, 30))
    assert values(stream, "1999-01-01T00:00:00Z", "2099-01-01T00:00:00+01:00") == list(range(30))


def test_projection_and_filters(stream: segstore.Stream) -> None:
    """Columns come in the order asked for; a filter may use a column that is not returned."""
    table = stream.read(columns=["s"], filters=[["n", ">=", 28]], offset_column="o").read_all()
    assert table.to_pydict() == {"s": ["s28", "s29"], "o": [28, 29]}
    assert stream.read(columns=["s", "n"]).schema.names == ["s", "n"]
    assert stream.read(columns=[], offset_column="o").read_all()["o"].to_pylist() == list(range(30))
    segments = stream.read(segment_column="seg").read_all()["seg"].to_pylist()
    assert segments == [n // 10 for n in range(30)]
    for wrong in (
        {"columns": ["x"]},
        {"columns": ["n", "n"]},
        {"offset_column": "n"},
        {"offset_column": "o", "segment_column": "o"},
        {"filters": [["x", "==", 1]]},
        {"filters": [["n", "~", 1]]},
    ):
        with pytest.raises(InvalidInputError):
            stream.read(**wrong)


def test_failing_producer_leaves_nothing(stream: segstore.Stream) -> None:
    """An error of the caller's iterator is raised unchanged, and nothing is left behind."""

    def batches() -> object:
        yield from numbers(0, 10**5).to_batches(max_chunksize=10**4)
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        stream.append(batches(), layout=segstore.Layout(inline_bytes=0, segment_rows=30_000))
    assert stream.verify().check().leftovers == []
    assert stream.refresh().tail == 30


def test_schema_grows_only_when_asked(stream: segstore.Stream) -> None:
    """New columns, missing columns and wider types need merge_schema; old events read as null."""
    wider = pa.table({"n": [30], "s": ["s30"], "extra": [1.5]})
    with pytest.raises(SchemaMismatchError, match="extra"):
        stream.append(wider)
    with pytest.raises(SchemaMismatchError, match="merge_schema=True"):
        stream.append(pa.table({"n": [30]}))
    stream.append(wider, merge_schema=True)
    assert stream.schema.names == ["n", "s", "extra"]
    assert stream.read(28, columns=["extra", "n"]).read_all().to_pydict() == {
        "extra": [None, None, 1.5],
        "n": [28, 29, 30],
    }
    assert stream.read(0, 2, columns=["extra"]).read_all()["extra"].to_pylist() == [None, None]
    stream.verify().check()


def test_empty_append_commits_nothing(stream: segstore.Stream) -> None:
    """No events and no batch to remember: no commit. With a writer, the batch is remembered."""
    empty = numbers(0, 0)
    assert stream.append(empty).version == stream.version == 3
    first = stream.append(empty, writer_id="w", batch_id=1)
    assert (first.version, first.rows, first.repeated) == (4, 0, False)
    assert stream.append(empty, writer_id="w", batch_id=1).repeated


def test_create_opens_what_is_there_if_that_is_ok(tmp_path: Path) -> None:
    url, schema = tmp_path / "s", pa.schema([("n", pa.int64())])
    first = segstore.create(url, schema, exist_ok=True)
    first.append({"n": 1})
    again = segstore.create(url, like={"m": "other"}, exist_ok=True)
    assert (again._log.root.stream_id, again.tail, again.schema) == (
        first._log.root.stream_id,
        1,
        schema,
    )
    with pytest.raises(AlreadyExistsError):
        segstore.create(url, schema)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.csv").write_text("n")
    with pytest.raises(InvalidInputError, match="missing or empty"):
        segstore.create(tmp_path / "files", schema, exist_ok=True)


def test_position_of_another_generation_is_refused(stream: segstore.Stream) -> None:
    """A checkpoint from before history was abandoned is noticed."""
    other = segstore.Position(stream._log.root.stream_id, 1, 0)
    with pytest.raises(PositionError, match="another generation"):
        stream.read(other)


def test_start_below_the_head_names_what_is_lost(
    stream: segstore.Stream, caplog: pytest.LogCaptureFixture
) -> None:
    """An overwrite moved the head; reading below it is an error, or a warning if so asked."""
    stream.overwrite(numbers(30, 32))
    with pytest.raises(TruncatedError, match=r"lost='\[5, 30\)'"):
        stream.read(5)
    with pytest.raises(TruncatedError, match=r"lost='\[5, 20\)'"):
        stream.read(5, 20)
    assert values(stream, 5, fail_on_data_loss=False) == [30, 31]
    assert values(stream, 5, 20, fail_on_data_loss=False) == []
    assert ["[5, 30)" in caplog.messages[0], "[5, 20)" in caplog.messages[1]] == [True, True]


def test_expectations_are_conditions_of_the_commit(stream: segstore.Stream) -> None:
    """An append on an expected tail or version conflicts if another commit came first."""
    stream.append(numbers(30, 31), expected_tail=30)
    with pytest.raises(ConflictError, match="tail has moved"):
        stream.append(numbers(30, 31), expected_tail=30)
    with pytest.raises(ConflictError, match="version has changed"):
        stream.append(numbers(31, 32), expected_version=3)
    assert stream.tail == 31
    assert stream.verify().check().leftovers == []


def test_writer_id_and_batch_id_go_together(stream: segstore.Stream) -> None:
    """One without the other, or out of range, is refused."""
    for key in ({"writer_id": "w"}, {"batch_id": 1}, {"writer_id": "", "batch_id": 1}):
        with pytest.raises(InvalidInputError):
            stream.append(numbers(0, 1), **key)
    with pytest.raises(InvalidInputError, match="not an integer in range"):
        stream.append(numbers(0, 1), writer_id="w", batch_id=-1)


@pytest.mark.usefixtures("no_inline")
def test_create_refuses_what_is_left_of_another_stream(tmp_path: object) -> None:
    """A folder with segments but no log is a stream whose log was lost, never hidden."""
    place = f"{tmp_path}/stream"
    stream = segstore.create(place, SCHEMA)
    stream.append(numbers(0, 5))
    for info in list(stream._log.storage.list("log")):
        stream._log.storage.delete(info.path)
    with pytest.raises(segstore.SegstoreError, match="segments of a stream but no log"):
        segstore.create(place, SCHEMA)
    with pytest.raises(NotFoundError):
        segstore.open(place)


def test_clock_off_the_stores_is_refused() -> None:
    """A commit time that is an hour ahead of the store's own clock is refused as well."""
    import time

    clock = Clock(wall_us=lambda: time.time_ns() // 1000 + 3600 * 1_000_000)
    stream = segstore.create(f"memory://{uuid.uuid4().hex}", SCHEMA, clock=clock)
    with pytest.raises(InvalidInputError, match="by more than 5 minutes"):
        stream.append(numbers(0, 1))
    assert stream.refresh().tail == 0
