"""What an append takes, above all what can be read only once: never lost without a word."""

import copy
import datetime as dt
import itertools
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from stream_kit import fresh_url

import segstore_ds as segstore
from segstore_ds.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    SchemaMismatchError,
    SegstoreError,
)
from segstore_ds.stream.connector.reads import open_snapshot

SCHEMA = pa.schema([("n", pa.int64())])
TABLE = pa.table({"n": [1, 2, 3]})


def generator() -> Iterator[pa.RecordBatch]:
    """Return a generator of two batches."""
    yield from pa.table({"n": [1, 2, 3]}).to_batches(max_chunksize=2)


def reader() -> pa.RecordBatchReader:
    """Return a reader of the same."""
    return pa.RecordBatchReader.from_batches(SCHEMA, generator())


class Query:
    """Something that answers with a reader and has no length."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the capsule."""
        return reader().__arrow_c_stream__(requested_schema)


class OneBatch:
    """Something that is one batch."""

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        """Return the capsules."""
        return TABLE.to_batches()[0].__arrow_c_array__(requested_schema)


@pytest.fixture
def stream() -> segstore.Stream:
    """An empty stream."""
    return segstore.create(fresh_url(), SCHEMA)


@pytest.mark.parametrize(
    "make",
    [
        generator,
        reader,
        Query,
        OneBatch,
        TABLE.to_batches,
        TABLE.to_pandas,
        lambda: TABLE,
        lambda: map(pa.RecordBatch.from_pylist, [[{"n": 1}], [{"n": 2}, {"n": 3}]]),
        lambda: TABLE.to_batches()[0],
    ],
)
def test_every_form_is_appended(stream: segstore.Stream, make: Callable[[], Any]) -> None:
    """Readers, generators, tables, batches and what exports itself."""
    assert stream.append(make()).rows == 3
    with stream.appender(flush_seconds=None) as appender:
        appender.append(make())
    assert stream.refresh().read().read_all()["n"].to_pylist() == [1, 2, 3] * 2


@pytest.mark.parametrize("make", [generator, reader])
def test_what_is_used_up_is_refused_when_it_is_given_again(
    stream: segstore.Stream, make: Callable[[], Any]
) -> None:
    """It would commit nothing, and a writer's batch would count as written for ever."""
    given = make()
    stream.append(given)
    for append in (stream.append, stream.overwrite, stream.appender(flush_seconds=None).append):
        with pytest.raises(InvalidInputError, match=r"already consumed.*pass the data again"):
            append(given)
    taken = make()
    with stream.appender(flush_seconds=None) as appender:
        appender.append(taken)
        with pytest.raises(InvalidInputError, match="already consumed"):
            appender.append(taken)
    assert stream.refresh().tail == 6


def test_failed_planning_consumes_no_batches(stream: segstore.Stream) -> None:
    """Nothing was taken: the same call may be tried again, and writes everything."""
    given = reader()
    with pytest.raises(ConflictError) as caught:
        stream.append(given, expected_tail=99)
    assert caught.value.retryable
    assert stream.append(given, expected_tail=0).rows == 3


def test_a_generator_whose_first_batch_was_taken_is_used_up(stream: segstore.Stream) -> None:
    """Its first batch tells the schema, so that planning needs it."""
    given = generator()
    with pytest.raises(ConflictError, match=r"already consumed.*pass the data again") as caught:
        stream.append(given, expected_tail=99, writer_id="w", batch_id=1)
    for error in (caught.value, copy.copy(caught.value), pickle.loads(pickle.dumps(caught.value))):  # noqa: S301
        assert not error.retryable
        assert "already consumed" in str(error)
        assert "already consumed" in error.remedy
    with pytest.raises(InvalidInputError, match="already consumed"):
        stream.append(given, writer_id="w", batch_id=1)
    assert ConflictError.retryable
    assert stream.append(generator(), writer_id="w", batch_id=1).rows == 3


@pytest.mark.usefixtures("no_inline")
@pytest.mark.parametrize("make", [generator, reader, Query, lambda: itertools.chain(generator())])
def test_conflict_after_reading_an_input_is_not_retryable(
    stream: segstore.Stream, make: Callable[[], Any]
) -> None:
    """Another writer comes while the input is read."""
    given = make()
    other = segstore.open(stream.url)
    stage = stream._commits.appender.stage_inline

    def after_another(*args: Any, **options: Any) -> Any:
        other.append(TABLE)
        return stage(*args, **options)

    stream._commits.appender.stage_inline = after_another
    with pytest.raises(ConflictError, match="already consumed") as caught:
        stream.append(given, expected_tail=0)
    assert not caught.value.retryable
    with pytest.raises(ConflictError) as caught:
        stream.append(TABLE, expected_tail=3)
    assert caught.value.retryable
    assert "already consumed" not in str(caught.value)


def test_a_schema_that_does_not_fit_uses_a_generator_up(stream: segstore.Stream) -> None:
    """The error of the appender says so as well."""
    for append in (stream.append, stream.appender(flush_seconds=None).append):
        with pytest.raises(SchemaMismatchError, match="already consumed"):
            append(iter([pa.record_batch({"x": [1]})]))
        with pytest.raises(SchemaMismatchError) as caught:
            append([pa.record_batch({"x": [1]})])
        assert "already consumed" not in str(caught.value)


def test_input_that_is_not_a_batch_is_named(stream: segstore.Stream) -> None:
    """Also after the first batch, and for batches with other columns; nothing is committed."""
    [batch] = TABLE.to_batches()
    wrong: list[tuple[Any, str]] = [
        (iter([batch, "x"]), "not a batch.*batch=1"),
        ([batch, None], "not a batch.*batch=1"),
        ([batch, pa.record_batch({"m": [1]})], "different columns.*batch=1"),
        (pd.Series([1]), "not Arrow data.*type='Series'"),
        (pd.DataFrame({"n": [1, "x"]}), "no Arrow type: column='n'"),
        (pa.array([1]), "not Arrow data"),
        (pa.chunked_array([[1]]), "not Arrow data"),
        (iter([]), "not Arrow data"),
    ]
    appender = stream.appender(flush_seconds=None)
    for data, fact in wrong:
        with pytest.raises(InvalidInputError, match=fact):
            stream.append(data)
    for data, fact in wrong[1:]:
        with pytest.raises(InvalidInputError, match=fact):
            appender.append(data)
    assert appender.next_place == 0
    assert stream.refresh().tail == 0
    assert stream.verify().check().leftovers == []


def test_versions_and_times_to_read_as_of(stream: segstore.Stream) -> None:
    """A datetime works as in cuts; for anything else the error names the accepted forms."""
    stream.append(TABLE)
    moment = stream._log.root.time_us
    newest = dt.datetime.fromtimestamp(moment / 1e6, tz=dt.UTC) + dt.timedelta(milliseconds=1)
    for zone in (dt.UTC, ZoneInfo("Europe/Berlin")):
        assert stream.read(as_of=newest.astimezone(zone)).read_all().num_rows == 3
        moment_there = newest.astimezone(zone)
        assert stream.scan(as_of=moment_there).files(partial=True) == []
    assert stream.read(as_of=newest.isoformat()).read_all().num_rows == 3
    assert stream.read(as_of=np.int64(0)).read_all().num_rows == 0
    with pytest.raises(NotFoundError, match="created after"):
        stream.read(as_of=newest - dt.timedelta(days=1))
    with pytest.raises(InvalidInputError, match="time has no time zone"):
        stream.read(as_of=newest.replace(tzinfo=None))
    for wrong in ("-5s", "yesterday", "tail", "1"):
        with pytest.raises(InvalidInputError, match=r"not a time.*give a datetime"):
            stream.read(as_of=wrong)
    for wrong in (newest.date(), 1.5, b"2026", 1.0, True, np.float64(1), np.array([0.0]), []):
        with pytest.raises(InvalidInputError, match=r"neither a version nor a time.*a datetime"):
            stream.read(as_of=wrong)
    for wrong in ("1", 1.0, True, np.array([0.0]), []):
        with pytest.raises(InvalidInputError, match="give version as an int"):
            stream.restore(wrong)
    with pytest.raises(InvalidInputError, match="both a version and a time"):
        open_snapshot(stream._log.storage, version_as_of=1, timestamp_as_of="2026-01-01T00:00:00Z")


def test_offsets_of_numpy_are_cuts(stream: segstore.Stream) -> None:
    """What `offset_column` gives may be read from."""
    stream.append(TABLE)
    assert stream.read(np.int64(1), np.uint8(2)).read_all()["n"].to_pylist() == [2]
    for wrong in (1.0, True, np.bool_(True), np.float64(1), np.int64(-1), np.array([1.5]), None):
        with pytest.raises(InvalidInputError, match="not a cut"):
            stream.read(wrong)


@pytest.mark.parametrize("schema", [{"n": pa.int64()}, {"n": [1]}, None, TABLE, "n bigint"])
def test_a_stream_is_created_of_a_schema_alone(schema: Any) -> None:
    """What is none is refused before anything is written."""
    url = fresh_url()
    with pytest.raises(InvalidInputError, match=r"not a schema.*pyarrow Schema"):
        segstore.create(url, schema)
    assert not segstore.exists(url)


def test_an_input_that_is_gone_is_forgotten(stream: segstore.Stream) -> None:
    """The memory of used-up inputs holds none of them, and a new one at the same place is new."""
    for _ in range(50):
        stream.append(generator())
    assert stream.tail == 150


def test_errors_of_the_callers_own_are_left_alone(stream: segstore.Stream) -> None:
    """They come as they are, and the generator is already consumed."""

    def failing() -> Iterator[pa.RecordBatch]:
        yield TABLE.to_batches()[0]
        raise KeyError("mine")

    for given in (failing(), pa.RecordBatchReader.from_batches(SCHEMA, failing())):
        with pytest.raises(KeyError, match="mine"):
            stream.append(given)
        with pytest.raises(SegstoreError, match="already consumed"):
            stream.append(given)


def test_half_a_surrogate_pair_is_refused_by_every_entry(tmp_path: Path) -> None:
    """No file, no key and no other text of a store can hold one."""
    stream = segstore.create(tmp_path / "s", SCHEMA)
    for url in (f"{tmp_path}/b\ud800", "memory://b/\udcff"):
        for call in (
            lambda url=url: segstore.create(url, SCHEMA),
            lambda url=url: segstore.open(url),
            lambda url=url: segstore.exists(url),
            lambda url=url: segstore.list_streams(url),
            lambda url=url: segstore.drop(url, confirm=url),
            lambda url=url: segstore.drop(stream.url, confirm=url),
            lambda url=url: segstore.repair(url),
            lambda url=url: segstore.salvage(stream.url, url),
            lambda url=url: segstore.salvage(url, f"{tmp_path}/new"),
            lambda url=url: stream.copy_to(url, copy_id="c"),
            lambda url=url: stream.copy_to(url, copy_id="c", mode="clone"),
            lambda url=url: stream.followers.add(url),
            lambda url=url: stream.followers.remove(url),
            lambda url=url: segstore.open(stream.url, storage_options={url: {}}),
        ):
            with pytest.raises(InvalidInputError, match="a character that no name can have"):
                call()
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
