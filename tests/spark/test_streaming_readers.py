"""Named readers of streaming queries: what is published when, and who may use a name."""

from collections.abc import Callable
from pathlib import Path

import pytest
from query_kit import as_spark, ask, numbers, start_reader

from segstore_ds.errors import (
    InvalidInputError,
    ReaderConflictError,
    TruncatedError,
)
from segstore_ds.spark.source import SegstoreDataSource
from segstore_ds.spark.streaming.source import SegstoreStreamReader
from segstore_ds.spark.versions import ReadAllAvailable
from segstore_ds.stream.stream import Stream


@pytest.fixture
def query(url: str) -> Callable[..., SegstoreStreamReader]:
    """Start a query with a named reader."""

    def start(name: str = "etl", **options: object) -> SegstoreStreamReader:
        return start_reader(url, readerName=name, **options)

    return start


def published(stream: Stream, name: str = "etl") -> tuple[int, bool]:
    """Return a reader's position, and whether its owner is provisional."""
    found = {seen.name: seen.record for seen in stream.readers}[name]
    return found.offset, found.provisional


@pytest.mark.parametrize("released", [False, True])
def test_query_whose_checkpoint_is_lost_takes_over_and_goes_on(stream, query, released) -> None:
    """It begins at the position of the name instead of its own start; the old one is refused."""
    old = query(startCut=5, maxRowsPerTrigger=10)
    end = old.latestOffset(old.initialOffset(), old.getDefaultReadLimit())
    assert old.latestOffset(end, old.getDefaultReadLimit())["offset"] == 25
    assert published(stream) == (15, False)
    if released:
        assert stream.readers.release("etl")
    new = query(startCut="head", takeover=True)
    end = ask(new, new.initialOffset())
    assert (end["origin"], end["offset"], published(stream)) == (15, 30, (15, True))
    assert stream.retain(max_bytes=0).head == 15
    assert ask(query(startCut="head", takeover=True), end) == end  # restarted with the option
    assert published(stream) == (30, False)
    with pytest.raises(ReaderConflictError, match=r"continue at its position with takeover=true"):
        old.latestOffset({**end, "reader": old._published._token}, ReadAllAvailable())
    first = query("other", startCut=20, takeover=True)
    assert ask(first, first.initialOffset())["origin"] == 20
    for name in ("../x", "_x", "a b"):  # a name is a folder
        with pytest.raises(InvalidInputError, match="not a name of a reader"):
            query(name).initialOffset()
    nameless = SegstoreDataSource({"path": stream.url, "takeover": "true"}).streamReader(None)
    with pytest.raises(InvalidInputError, match="readerName"):
        nameless.initialOffset()
    refused = SegstoreDataSource({"path": stream.url, "versionAsOf": "1"}).streamReader(None)
    for call in (refused.initialOffset, refused.latestOffset, lambda: refused.partitions({}, {})):
        with pytest.raises(InvalidInputError, match="not to a stream read"):  # not by its creation
            call()


def test_reset_of_a_querys_reader_needs_a_new_checkpoint(stream, query) -> None:
    """The query ends and says so; a new one begins at the cut."""
    old = query()
    end = ask(old, old.initialOffset())
    ask(old, end)
    stream.readers.reset("etl", 5)
    stream.append(numbers(30, 40))
    later = ask(old, end)
    with pytest.raises(ReaderConflictError, match="with a new checkpoint and takeover=true"):
        ask(old, later)
    new = query(takeover=True)
    assert ask(new, new.initialOffset())["origin"] == 5


def test_position_is_what_spark_has_done_not_what_it_was_given(stream, query) -> None:
    """A batch that is still running is held back; the commit publishes it as well."""
    reader = query(maxRowsPerTrigger=10)
    first = reader.initialOffset()
    one = as_spark(reader.latestOffset(first, reader.getDefaultReadLimit()))
    assert published(stream)[0] == 0
    reader.commit(one)
    assert published(stream)[0] == 10
    two = as_spark(reader.latestOffset(one, reader.getDefaultReadLimit()))
    assert (two["offset"], published(stream)) == (20, (10, False))


def test_restarted_query_keeps_the_ownership_of_its_reader(stream, query) -> None:
    """The owner travels in the checkpoint's offsets."""
    before = query()
    end = ask(before, before.initialOffset())
    stream.append(numbers(30, 40))
    again = query()
    later = ask(again, end)
    assert (later["offset"], later["reader"]) == (40, end["reader"])
    assert published(stream) == (30, False)


def test_another_query_is_refused_until_the_name_is_free(stream, query) -> None:
    """One name, one query; a checkpoint that was deleted makes another one."""
    first = query()
    end = ask(first, first.initialOffset())
    ask(first, end)
    other = query()
    with pytest.raises(ReaderConflictError, match=r"readers\.release"):
        ask(other, other.initialOffset())
    stream.readers.release("etl")
    ask(other, other.initialOffset())
    stream.append(numbers(30, 31))
    later = ask(first, end)
    with pytest.raises(ReaderConflictError):
        ask(first, later)


def test_query_that_never_logged_its_first_batch_may_start_again(stream, query) -> None:
    """Its first registration was provisional, so its own next start is not refused."""
    first = query()
    ask(first, first.initialOffset())
    second = query()
    ask(second, ask(second, second.initialOffset()))
    assert published(stream) == (30, False)


def test_reader_name_added_later_is_logged_by_an_empty_batch(stream, query) -> None:
    """Offsets of before carry no owner: the next one does, and differs as text."""
    reader = start_reader(stream.url)
    end = ask(reader, reader.initialOffset())
    named = query()
    later = ask(named, end)
    assert (later["offset"], set(later) - set(end)) == (30, {"reader"})
    assert ask(named, later) == later
    assert published(stream) == (30, False)


def test_position_below_the_head_fails_or_skips_to_the_head(stream, query) -> None:
    """As for the events themselves."""
    reader = query(startCut=0)
    stream.truncate(15)
    with pytest.raises(TruncatedError):
        ask(reader, reader.initialOffset())
    lossy = query("lossy", startCut=0, failOnDataLoss="false")
    end = ask(lossy, lossy.initialOffset())
    assert published(stream, "lossy") == (15, True)
    assert end["offset"] == 30


def test_publishing_that_fails_does_not_end_the_query(stream, query, monkeypatch) -> None:
    """The earlier position holds back more; the next batch publishes again."""
    reader = query()
    end = ask(reader, reader.initialOffset())
    folder = Path(stream.url.removeprefix("file://")) / "readers" / "etl"
    moved = folder.rename(folder.with_name("moved"))
    folder.write_text("a file where the folder was")
    monkeypatch.setattr("time.sleep", lambda _: None)
    assert ask(reader, end) == end
    folder.unlink()
    moved.rename(folder)
    assert published(stream) == (0, True)
    ask(reader, end)
    assert published(stream) == (30, False)
