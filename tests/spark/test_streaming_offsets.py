"""The streaming source as Spark drives it, without Spark: offsets, ends, and what is refused."""

import datetime as dt
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType
from query_kit import SCHEMA, as_spark, ends, follow, numbers, rows, start_reader

import segstore_ds as segstore
from segstore_ds.errors import (
    InvalidInputError,
    NotFoundError,
    PositionError,
    SchemaMismatchError,
    TruncatedError,
)
from segstore_ds.log.commit import Change
from segstore_ds.spark.streaming.source import SegstoreStreamReader
from segstore_ds.stream.stream import Stream


@pytest.fixture
def query(url: str) -> Callable[..., SegstoreStreamReader]:
    """Start a query of the stream."""
    return partial(start_reader, url)


def test_first_batch_binds_the_start_and_later_ones_go_on(stream, query) -> None:
    """Every event once, in order, within the limit."""
    reader = query(maxRowsPerTrigger=7)
    batches = list(follow(reader))
    assert ends(batches) == [7, 14, 21, 28, 30]
    assert [row["n"] for batch in batches for row in rows(reader, *batch)] == list(range(30))
    stream.append(numbers(30, 33))
    more = list(follow(reader, batches[-1][1]))
    assert ends(more) == [33]
    assert [row["n"] for row in rows(reader, *more[0])] == [30, 31, 32]


def test_offset_is_one_canonical_text(stream, query) -> None:
    """Nothing new gives the same text, whatever the order of keys it comes back in."""
    reader = query()
    [(_, end)] = follow(reader)
    limit = reader.getDefaultReadLimit()
    shuffled = dict(reversed(end.items()))
    assert json.dumps(reader.latestOffset(shuffled, limit)) == json.dumps(end)
    assert sorted(end) == list(end)
    assert reader.reportLatestOffset()["offset"] == stream.tail


def test_idle_poll_looks_at_two_files(stream, query) -> None:
    """On a local disk: the next commit and the last one; elsewhere it is one request."""
    reader = query()
    [(_, end)] = follow(reader)
    limit, storage = reader.getDefaultReadLimit(), reader._batches.stream._log.storage
    before = storage.stats.total
    for _ in range(10):
        assert reader.latestOffset(end, limit) == end
    assert storage.stats.total - before == 20


def test_limits_hold_together(stream, query, monkeypatch) -> None:
    """Of rows, bytes and segments; what Trigger.Once asks for passes over all of them."""
    assert ends(list(follow(query(maxBytesPerTrigger=1)))) == list(range(1, 31))
    monkeypatch.setattr("segstore_ds.stream.connector.queries.BATCH_SEGMENTS", 2)
    reader = query(maxRowsPerTrigger=13, maxBytesPerTrigger="2k")
    batches = list(follow(reader))
    assert ends(batches) == [13, 26, 30]
    assert [row["n"] for batch in batches for row in rows(reader, *batch)] == list(range(30))
    assert ends(list(follow(query()))) == [20, 30]
    assert ends(list(follow(query(maxRowsPerTrigger=1), everything=True))) == [30]


def test_start_in_every_form(stream, query) -> None:
    """Also a place where there is nothing yet, a time, and a position."""
    cuts = {"head": 0, "12": 12, "tail": 30, "version:2": 20, "2001-01-01T00:00:00Z": 0}
    for cut, first in {**cuts, stream.position(25).to_json(): 25}.items():
        reader = query(startCut=cut)
        [batch] = follow(reader)
        assert (batch[1]["offset"], batch[1]["origin"]) == (30, first)
        assert [row["n"] for row in rows(reader, *batch)] == list(range(first, 30))


def test_places_that_are_not_in_the_stream_are_refused(stream, query) -> None:
    """A typing error must not wait for ever, and no other stream is followed in silence."""
    with pytest.raises(PositionError, match="beyond the tail"):
        next(follow(query(startCut=31)))
    with pytest.raises(InvalidInputError, match="start is after end"):
        next(follow(query(startCut=20, endCut=10)))
    with pytest.raises(InvalidInputError, match="can't end at the head"):
        query(endCut="head").initialOffset()
    reader = query()
    [(_, end)] = follow(reader)
    beyond, limit = {**end, "offset": 31}, reader.getDefaultReadLimit()
    with pytest.raises(PositionError, match="beyond the tail"):
        reader.latestOffset(beyond, limit)
    with pytest.raises(PositionError, match="beyond the tail"):
        reader.partitions(end, beyond)
    with pytest.raises(PositionError, match="not written by segstore"):
        reader.latestOffset({"topic": {"0": 17}}, limit)  # a checkpoint of a Kafka query, say


def test_available_now_ends_at_the_tail_of_its_start(stream, query) -> None:
    """What comes after the query began is the next one's."""
    reader = query(maxRowsPerTrigger=20)
    reader.prepareForTriggerAvailableNow()
    stream.append(numbers(30, 40))
    assert ends(list(follow(reader))) == [20, 30]
    late = query(startCut="tail")
    late.prepareForTriggerAvailableNow()
    stream.append(numbers(40, 50))
    assert ends(list(follow(late))) == [40]


def test_first_batch_that_runs_again_begins_where_it_began(stream, query) -> None:
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


def test_nothing_past_the_end_is_delivered(stream, query) -> None:
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
    assert ends(list(follow(query(endCut="2999-01-01T00:00:00Z")))) == [40]


def test_query_never_goes_back(stream: Stream, query: Callable[..., SegstoreStreamReader]) -> None:
    """An end that was moved below what is done leaves it there, also when the head has passed."""
    done = query(endCut=12)
    [(_, end)] = follow(done)
    for _ in range(2):
        assert list(follow(query(endCut=5), end)) == []
        assert list(follow(done, end)) == []
        stream.overwrite(numbers(30, 31))


def test_events_below_the_head_are_named(stream, query, caplog) -> None:
    """A position below the head is an error, or is moved to the head with a warning."""
    strict, lenient = query(), query(failOnDataLoss=False, maxRowsPerTrigger=4)
    at = {"generation": 0, "offset": 12, "origin": 0, "stream": stream.position(12).stream_id}
    plan = {**at, "offset": 30}
    stream.overwrite(numbers(100, 106))
    assert (stream.head, stream.tail) == (30, 36)
    limit = strict.getDefaultReadLimit()
    for ask in (lambda: strict.latestOffset(at, limit), lambda: strict.partitions(at, plan)):
        with pytest.raises(TruncatedError, match=r"lost='\[12, 30\)'"):
            ask()
    assert lenient.partitions(at, plan) == []
    assert "the events [12, 30) of" in caplog.text
    batches = list(follow(lenient, at))
    assert ends(batches) == [34, 36]
    found = [row["n"] for batch in batches for row in rows(lenient, *batch)]
    assert found == list(range(100, 106))


def test_recreated_stream_is_an_error(stream, query, url) -> None:
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


def test_purged_versions_break_no_restart(stream, query) -> None:
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


def test_columns_filters_and_offsets_as_in_batch(stream, query) -> None:
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


def test_wider_column_ends_the_query_with_a_remedy(url, query) -> None:
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


def test_few_events_wait_for_more(stream, query) -> None:
    """Spark is told the start again, which is no batch; then one batch has all."""
    reader = query(minRowsPerTrigger=35, startCut=5)
    [(_, begun)] = follow(reader)
    assert begun["offset"] == 5
    assert list(follow(reader, begun)) == []
    stream.append(numbers(30, 41))
    assert ends(list(follow(reader, begun))) == [41]
    assert ends(list(follow(query(minRowsPerTrigger=40, maxTriggerDelay="0s"), begun))) == [41]


def test_minimum_leaves_no_event_behind_at_an_end(stream, query) -> None:
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
