"""The streaming source as Spark drives it, without Spark: offsets, ends, and what is refused."""

import datetime as dt
import itertools
import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

import segstore_ds as segstore
from segstore_ds.errors import (
    InvalidInputError,
    NotFoundError,
    PositionError,
    SchemaMismatchError,
    TruncatedError,
)
from segstore_ds.log.commit import Change
from segstore_ds.read.micro_batch import BatchLimits, plan_batch_end
from segstore_ds.spark.source import SegstoreDataSource
from segstore_ds.spark.streaming.source import SegstoreStreamReader
from segstore_ds.spark.versions import ReadAllAvailable
from segstore_ds.status.table_status import TableStatus
from segstore_ds.stream.connector import queries
from segstore_ds.stream.stream import Stream

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
Value = dict[str, Any]


def numbers(start: int, end: int) -> pa.Table:
    """Return the events start to end."""
    columns = {"n": list(range(start, end)), "s": [f"s{n}" for n in range(start, end)]}
    return pa.table(columns, SCHEMA)


@pytest.fixture
def stream(url: str) -> Stream:
    """A stream of three segments of ten events."""
    made = segstore.create(url, SCHEMA)
    for start in (0, 10, 20):
        made.append(numbers(start, start + 10))
    return made


@pytest.fixture
def query(url: str) -> Callable[..., SegstoreStreamReader]:
    """Start a query: what Spark's offset process holds."""

    def start(schema: StructType | None = None, **options: object) -> SegstoreStreamReader:
        given = {"path": url, **{name: str(value) for name, value in options.items()}}
        source = SegstoreDataSource(given)
        return source.streamReader(schema or source.schema())

    return start


def follow(
    reader: SegstoreStreamReader, start: Value | None = None, *, everything: bool = False
) -> Iterator[tuple[Value, Value]]:
    """Yield the micro-batches that Spark would run until there is nothing new."""
    limit = ReadAllAvailable() if everything else reader.getDefaultReadLimit()
    given = start if start is not None else as_spark(reader.initialOffset())
    while (end := as_spark(reader.latestOffset(given, limit))) != given:
        assert json.dumps(end) != json.dumps(given)
        yield given, end
        given = end


def as_spark(value: Value) -> Value:
    """Take an offset through JSON text, as Spark does."""
    return json.loads(json.dumps(value))


def rows(reader: SegstoreStreamReader, start: Value, end: Value) -> list[dict[str, Any]]:
    """Read a batch with the tasks' copy of the reader."""
    tasks = pickle.loads(pickle.dumps(reader))  # noqa: S301 - our own bytes
    found = []
    plan = pickle.dumps(reader.partitions(start, end))
    for partition in pickle.loads(plan):  # noqa: S301 - our own bytes
        for batch in tasks.read(partition):
            found += batch.to_pylist()
    return found


def ends(batches: list[tuple[Value, Value]]) -> list[int]:
    return [end["offset"] for _, end in batches]


def test_first_batch_binds_the_start_and_later_ones_go_on(
    stream: Stream, query: Callable[..., SegstoreStreamReader]
) -> None:
    """Every event once, in order, within the limit."""
    reader = query(maxRowsPerTrigger=7)
    batches = list(follow(reader))
    assert ends(batches) == [7, 14, 21, 28, 30]
    assert [row["n"] for batch in batches for row in rows(reader, *batch)] == list(range(30))
    stream.append(numbers(30, 33))
    more = list(follow(reader, batches[-1][1]))
    assert ends(more) == [33]
    assert [row["n"] for row in rows(reader, *more[0])] == [30, 31, 32]


def test_offset_is_one_canonical_text(
    stream: Stream, query: Callable[..., SegstoreStreamReader]
) -> None:
    """Nothing new gives the same text, whatever the order of keys it comes back in."""
    reader = query()
    [(_, end)] = follow(reader)
    limit = reader.getDefaultReadLimit()
    shuffled = dict(reversed(end.items()))
    assert json.dumps(reader.latestOffset(shuffled, limit)) == json.dumps(end)
    assert sorted(end) == list(end)
    assert reader.reportLatestOffset()["offset"] == stream.tail


@pytest.mark.usefixtures("stream")
def test_idle_poll_looks_at_two_files(query: Callable[..., SegstoreStreamReader]) -> None:
    """On a local disk: the next commit and the last one; elsewhere it is one request."""
    reader = query()
    [(_, end)] = follow(reader)
    limit, storage = reader.getDefaultReadLimit(), reader._batches.stream._log.storage
    before = storage.stats.total
    for _ in range(10):
        assert reader.latestOffset(end, limit) == end
    assert storage.stats.total - before == 20


@pytest.mark.usefixtures("stream")
def test_read_all_available_passes_over_every_limit(
    query: Callable[..., SegstoreStreamReader],
) -> None:
    """What Trigger.Once asks for."""
    reader = query(maxRowsPerTrigger=1, maxBytesPerTrigger=1)
    assert ends(list(follow(reader, everything=True))) == [30]


@pytest.mark.parametrize(
    ("segments", "options"),
    [
        (1000, {"maxRowsPerTrigger": 1}),
        (1000, {"maxRowsPerTrigger": 7}),
        (1000, {"maxBytesPerTrigger": 1}),
        (1000, {"maxBytesPerTrigger": 1500}),
        (1, {}),
        (2, {"maxRowsPerTrigger": 13, "maxBytesPerTrigger": "2k"}),
    ],
)
def test_limits_hold_together_and_exactly(
    stream: Stream,
    query: Callable[..., SegstoreStreamReader],
    segments: int,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The batches are those of the pure plan over the stream's segments."""
    monkeypatch.setattr(queries, "BATCH_SEGMENTS", segments)
    for n in range(30, 45):
        stream.append(numbers(n, n + 1))
    reader = query(**options)
    batches = list(follow(reader))
    root = stream._log.root
    size = {"2k": 2048}.get(options.get("maxBytesPerTrigger"), options.get("maxBytesPerTrigger"))
    limits = BatchLimits(options.get("maxRowsPerTrigger"), size, segments)
    expected, cursor = [], 0
    while cursor < root.tail:
        listed = TableStatus(stream._log.storage).segments(root, cursor, root.tail)
        cursor = plan_batch_end(listed, cursor, root.tail, limits)
        expected.append(cursor)
    assert ends(batches) == expected
    assert [row["n"] for batch in batches for row in rows(reader, *batch)] == list(range(45))


def test_available_now_ends_at_the_tail_of_its_start(
    stream: Stream, query: Callable[..., SegstoreStreamReader]
) -> None:
    """What comes after the query began is the next one's."""
    reader = query(maxRowsPerTrigger=20)
    reader.prepareForTriggerAvailableNow()
    stream.append(numbers(30, 40))
    assert ends(list(follow(reader))) == [20, 30]
    late = query(startCut="tail")
    late.prepareForTriggerAvailableNow()
    stream.append(numbers(40, 50))
    assert ends(list(follow(late))) == [40]


@pytest.mark.usefixtures("stream")
@pytest.mark.parametrize(
    ("cut", "first"), [("head", 0), ("12", 12), ("tail", 30), ("version:2", 20), (None, 0)]
)
def test_start_in_every_form(
    query: Callable[..., SegstoreStreamReader], cut: str | None, first: int
) -> None:
    """Also a place where there is nothing yet."""
    reader = query(**({"startCut": cut} if cut else {}))
    batches = list(follow(reader))
    assert ends(batches) == [30]
    assert batches[0][1]["origin"] == first
    assert [row["n"] for row in rows(reader, *batches[0])] == list(range(first, 30))


def test_start_at_a_time_and_at_a_position(
    stream: Stream, query: Callable[..., SegstoreStreamReader]
) -> None:
    """A position is a text too."""
    position = stream.position(25).to_json()
    assert [e["origin"] for _, e in follow(query(startCut=position))] == [25]
    long_ago = dt.datetime(2001, 1, 1, tzinfo=dt.UTC).isoformat()
    assert [e["origin"] for _, e in follow(query(startCut=long_ago))] == [0]


def test_first_batch_that_runs_again_begins_where_it_began(
    stream: Stream, query: Callable[..., SegstoreStreamReader]
) -> None:
    """Spark asks for the initial offset again: tail is elsewhere by then, the batch is not."""
    first = query(startCut="tail")
    [(start, bound)] = follow(first)
    stream.append(numbers(30, 35))
    again = query(startCut="tail")
    assert rows(again, as_spark(again.initialOffset()), bound) == []
    [(_, end)] = follow(again, bound)
    assert [row["n"] for row in rows(again, bound, end)] == list(range(30, 35))
    other = query(startCut="version:1", maxRowsPerTrigger=4)
    _, end = next(follow(other))
    replayed = query(startCut="tail")
    found = rows(replayed, as_spark(replayed.initialOffset()), end)
    assert [row["n"] for row in found] == [10, 11, 12, 13]
    assert start == {"cut": "tail"}


@pytest.mark.usefixtures("stream")
def test_start_beyond_the_tail_is_refused(query: Callable[..., SegstoreStreamReader]) -> None:
    """A typing error must not wait for events for ever."""
    with pytest.raises(PositionError, match="beyond the tail"):
        next(follow(query(startCut=31)))
    with pytest.raises(InvalidInputError, match="start is after end"):
        next(follow(query(startCut=20, endCut=10)))
    with pytest.raises(InvalidInputError, match="can't end at the head"):
        query(endCut="head").initialOffset()


def test_nothing_past_the_end_is_delivered(
    stream: Stream, query: Callable[..., SegstoreStreamReader]
) -> None:
    """An end that is there, one that is still to come, and one given by version or time."""
    assert ends(list(follow(query(endCut=15, maxRowsPerTrigger=10)))) == [10, 15]
    assert ends(list(follow(query(endCut="version:2")))) == [20]
    for reader in (query(endCut=35), query(endCut="version:4")):
        assert ends(list(follow(reader))) == [30]
    by_version, by_offset = query(endCut="version:5"), query(endCut=35)
    [(_, at)], [(_, same)] = list(follow(by_version)), list(follow(by_offset))
    stream.append(numbers(30, 34))
    now = dt.datetime.now(dt.UTC).isoformat()
    by_time = query(endCut=now)
    stream.append(numbers(34, 38))
    stream.append(numbers(38, 40))
    assert ends(list(follow(by_version, at))) == [38]
    assert ends(list(follow(by_offset, same))) == [35]
    assert ends(list(follow(by_time))) == [34]


def test_query_never_goes_back(stream: Stream, query: Callable[..., SegstoreStreamReader]) -> None:
    """An end that was moved below what is done leaves it there, also when the head has passed."""
    done = query(endCut=12)
    [(_, end)] = follow(done)
    for _ in range(2):
        assert list(follow(query(endCut=5), end)) == []
        assert list(follow(done, end)) == []
        stream.overwrite(numbers(30, 31))


@pytest.mark.usefixtures("stream")
def test_end_at_a_time_to_come_takes_what_is_there(
    query: Callable[..., SegstoreStreamReader],
) -> None:
    """Everything committed so far was committed before it."""
    assert ends(list(follow(query(endCut="2999-01-01T00:00:00Z")))) == [30]


def test_events_below_the_head_are_named(
    stream: Stream,
    query: Callable[..., SegstoreStreamReader],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A position below the head is an error, or is moved to the head with a warning."""
    strict, lenient = query(), query(failOnDataLoss=False, maxRowsPerTrigger=4)
    reached = stream.position(12)
    at = {"generation": 0, "offset": 12, "origin": 0, "stream": reached.stream_id}
    plan = {**at, "offset": 30}
    stream.overwrite(numbers(100, 106))
    assert (stream.head, stream.tail) == (30, 36)
    with pytest.raises(TruncatedError, match=r"lost='\[12, 30\)'"):
        strict.latestOffset(at, strict.getDefaultReadLimit())
    with pytest.raises(TruncatedError, match=r"lost='\[12, 30\)'"):
        strict.partitions(at, plan)
    assert lenient.partitions(at, plan) == []
    assert "the events [12, 30) of" in caplog.text
    batches = list(follow(lenient, at))
    assert ends(batches) == [34, 36]
    found = [row["n"] for batch in batches for row in rows(lenient, *batch)]
    assert found == list(range(100, 106))


@pytest.mark.usefixtures("stream")
def test_recreated_stream_is_an_error(query: Callable[..., SegstoreStreamReader], url: str) -> None:
    """An offset of the old one is refused, with what to do."""
    reader = query()
    [(_, end)] = follow(reader)
    shutil.rmtree(Path(url.removeprefix("file://")))
    again = segstore.create(url, SCHEMA)
    for start in range(0, 50, 10):
        again.append(numbers(start, start + 10))
    with pytest.raises(PositionError, match=r"another stream.*recreated.*new checkpoint"):
        query().latestOffset(end, reader.getDefaultReadLimit())
    with pytest.raises(NotFoundError, match=r"another one was created.*new checkpoint"):
        reader.latestOffset(end, reader.getDefaultReadLimit())


@pytest.mark.usefixtures("stream")
def test_offset_beyond_the_tail_is_refused(query: Callable[..., SegstoreStreamReader]) -> None:
    """A stream that was set back to a copy must not be followed in silence."""
    reader = query()
    [(_, end)] = follow(reader)
    beyond = {**end, "offset": 31}
    for ask in (
        lambda: reader.latestOffset(beyond, reader.getDefaultReadLimit()),
        lambda: reader.partitions(end, beyond),
    ):
        with pytest.raises(PositionError, match="beyond the tail"):
            ask()


@pytest.mark.usefixtures("stream")
def test_offset_of_another_source_is_refused(query: Callable[..., SegstoreStreamReader]) -> None:
    """A checkpoint of a Kafka query, say."""
    reader = query()
    with pytest.raises(PositionError, match="not written by segstore"):
        reader.latestOffset({"topic": {"0": 17}}, reader.getDefaultReadLimit())


def test_purged_versions_break_no_restart(
    stream: Stream, query: Callable[..., SegstoreStreamReader]
) -> None:
    """Offsets are logical: neither the start's version nor the checkpoint's is needed again."""
    first = query(startCut="version:1", maxRowsPerTrigger=5)
    _, end = next(follow(first))
    for start in range(30, 60, 10):
        stream.append(numbers(start, start + 10))
    stream._log.commit(lambda root, _: Change(replace(root, log_start=5, operation="purge")))
    stream._log.files.purge(5)
    again = query(startCut="version:1")
    found = rows(again, as_spark(again.initialOffset()), end)
    assert [row["n"] for row in found] == list(range(10, 15))
    [(start, last)] = follow(again, end)
    assert [row["n"] for row in rows(again, start, last)] == list(range(15, 60))


def test_columns_filters_and_offsets_as_in_batch(
    stream: Stream, query: Callable[..., SegstoreStreamReader]
) -> None:
    """Options of a batch read mean the same."""
    reader = query(
        columns="s",
        filters='[["n",">=",8]]',
        offsetColumn="at",
        commitTimeColumn="time",
        maxRowsPerTrigger=10,
    )
    batches = list(follow(reader))
    assert ends(batches) == [10, 20, 30]
    time = stream.history(1, 2).read_all()["time"][0].as_py()
    assert rows(reader, *batches[0]) == [
        {"s": "s8", "at": 8, "time": time},
        {"s": "s9", "at": 9, "time": time},
    ]
    asked = StructType([StructField("s", StringType()), StructField("n", LongType())])
    projected = query(asked, endCut=1)
    [batch] = follow(projected)
    assert [list(row) for row in rows(projected, *batch)] == [["s", "n"]]
    assert projected.partitions(batch[1], batch[1]) == []
    with pytest.raises(PositionError, match="ends before it begins"):
        projected.partitions(batch[1], {**batch[1], "offset": 0, "origin": 0})


def test_wider_column_ends_the_query_with_a_remedy(
    url: str, query: Callable[..., SegstoreStreamReader]
) -> None:
    """A query's columns are those of its start, and it reads no batch that has others."""
    stream = segstore.create(url, pa.schema([("n", pa.int32())]))
    stream.append(pa.table({"n": pa.array([1], pa.int32())}))
    reader = query()
    [(_, end)] = follow(reader)
    chosen = query(columns="n")
    both = pa.table({"n": pa.array([2], pa.int32()), "m": ["x"]})
    stream.append(both, merge_schema=True)
    [batch] = follow(reader, end)
    with pytest.raises(SchemaMismatchError, match=r"new_columns=\['m'\]; load it again.*columns"):
        reader.partitions(*batch)
    assert rows(chosen, *batch) == [{"n": 2}]
    reader = query()
    assert rows(reader, *batch) == [{"n": 2, "m": "x"}]
    stream.append(pa.table({"n": pa.array([3], pa.int64()), "m": ["x"]}), merge_schema=True)
    [batch] = follow(reader, batch[1])
    with pytest.raises(SchemaMismatchError, match="load it again"):
        reader.partitions(*batch)
    assert [row["n"] for row in rows(query(), *batch)] == [3]


def test_few_events_wait_for_more(
    stream: Stream, query: Callable[..., SegstoreStreamReader]
) -> None:
    """Spark is told the start again, which is no batch; then one batch has all."""
    reader = query(minRowsPerTrigger=35, startCut=5)
    [(_, begun)] = follow(reader)
    assert begun["offset"] == 5
    assert list(follow(reader, begun)) == []
    stream.append(numbers(30, 41))
    assert ends(list(follow(reader, begun))) == [41]
    assert ends(list(follow(query(minRowsPerTrigger=40, maxTriggerDelay="0s"), begun))) == [41]


def test_minimum_leaves_no_event_behind_at_an_end(
    stream: Stream, query: Callable[..., SegstoreStreamReader]
) -> None:
    """The triggers `Once` and `AvailableNow` take all, and so does a query that reaches its end."""
    reader = query(minRowsPerTrigger=35)
    assert ends(list(follow(reader, everything=True))) == [30]
    reader.prepareForTriggerAvailableNow()
    assert ends(list(follow(reader))) == [30]
    assert ends(list(follow(query(minRowsPerTrigger=35, endCut=30)))) == [30]
    assert ends(list(follow(query(minRowsPerTrigger=35, maxRowsPerTrigger=35)))) == [0]
    stream.seal()
    assert ends(list(follow(query(minRowsPerTrigger=35)))) == [30]
    with pytest.raises(InvalidInputError, match="above maxRowsPerTrigger"):
        query(minRowsPerTrigger=35, maxRowsPerTrigger=34).initialOffset()


def test_tasks_are_packed_as_in_batch(
    stream: Stream, query: Callable[..., SegstoreStreamReader]
) -> None:
    """Small segments together, large ones split where frames begin, and in offset order."""
    stream.append(numbers(30, 70), layout=segstore.Layout(inline_bytes=0, frame_rows=2))
    assert len(query().partitions(*next(follow(query())))) == 1
    split = query(minPartitions=8)
    parts = split.partitions(*next(follow(split)))
    assert len(parts) > 4
    starts = [part.value[0][1].slices[0].start for part in parts]
    assert starts == sorted(starts)
    assert all(a <= b for a, b in itertools.pairwise(starts))
