"""The streams of a folder as one: columns, filters, fairness, news, and what a look costs."""

import shutil
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from fixtures_s3 import S3Server
from virtual_time import VirtualTime
from wrapped_storage import WrappedStorage

import segstore_ds as segstore
from segstore_ds.errors import (
    InvalidInputError,
    NotFoundError,
    PositionError,
    SchemaMismatchError,
    StorageError,
    TruncatedError,
)
from segstore_ds.read.progress import FolderBatches, Progress
from segstore_ds.read.together import StreamFolder
from segstore_ds.storage import Storage, open_storage

N = pa.schema([("n", pa.int64())])


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}"


def create(url: str, rows: int = 0, schema: pa.Schema = N) -> segstore.Stream:
    stream = segstore.create(url, schema)
    if rows:
        append(stream, rows)
    return stream


def append(stream: segstore.Stream, rows: int) -> None:
    tail = stream.refresh().tail
    stream.append(pa.table({"n": [*range(tail, tail + rows)]}))


def rows(url: str, **how: object) -> list[dict[str, object]]:
    return pa.table(segstore.StreamSet(f"{url}/*").scan(**how)).to_pylist()


def test_columns_are_joined_by_name_and_types_hold_all_values(url: str) -> None:
    one = create(f"{url}/a", schema=pa.schema([("n", pa.int32()), ("x", pa.string())]))
    two = create(f"{url}/b", schema=pa.schema([("y", pa.float32()), ("n", pa.int64())]))
    one.append({"n": 1, "x": "p"})
    two.append({"n": 1 << 40, "y": 0.5})
    assert rows(url, offset_column="at") == [
        {"n": 1, "x": "p", "y": None, "at": 0, "stream": "a"},
        {"n": 1 << 40, "x": None, "y": 0.5, "at": 0, "stream": "b"},
    ]
    assert rows(url, columns=["y"], filters="n > 5") == [{"y": 0.5, "stream": "b"}]
    assert rows(url, columns=[], filters="x is null") == [{"stream": "b"}]


def test_null_stands_for_a_column_that_the_stream_calls_otherwise(url: str) -> None:
    """A stored name that the stream once gave to another column is not read as that column."""
    one, two = create(f"{url}/a", 2), create(f"{url}/b", 1)
    one.change_schema(rename={"n": "m"})
    assert rows(url) == [
        {"m": 0, "n": None, "stream": "a"},
        {"m": 1, "n": None, "stream": "a"},
        {"m": None, "n": 0, "stream": "b"},
    ]
    assert rows(url, filters="n == 0") == [{"m": None, "n": 0, "stream": "b"}]
    assert rows(url, filters="m == 1") == [{"m": 1, "n": None, "stream": "a"}]
    assert two.tail == 1


def test_columns_that_do_not_go_together_name_both_streams(url: str) -> None:
    create(f"{url}/a", schema=pa.schema([("n", pa.int64())]))
    create(f"{url}/b", schema=pa.schema([("m", pa.int64())]))
    create(f"{url}/c", schema=pa.schema([("n", pa.string())]))
    with pytest.raises(SchemaMismatchError) as refused:
        rows(url)
    fields = refused.value.fields
    assert (fields["column"], fields["stream"], fields["other_stream"]) == ("n", "c", "a")
    segstore.drop(f"{url}/c", confirm=f"{url}/c")
    create(f"{url}/c", schema=pa.schema([("M", pa.int64())]))
    with pytest.raises(SchemaMismatchError, match="case") as refused:
        rows(url)
    assert refused.value.fields["other_stream"] == "b"


def test_a_stream_with_a_column_of_that_name_is_an_error_until_it_is_renamed(url: str) -> None:
    create(f"{url}/a", schema=pa.schema([("stream", pa.string())])).append({"stream": "x"})
    with pytest.raises(InvalidInputError, match="stream_column") as refused:
        rows(url)
    assert refused.value.fields == {"column": "stream", "stream": "a"}
    found = segstore.StreamSet(f"{url}/*", stream_column="of").scan()
    assert pa.table(found).to_pylist() == [{"stream": "x", "of": "a"}]
    with pytest.raises(InvalidInputError, match="twice"):
        segstore.StreamSet(f"{url}/*", stream_column="of").scan(offset_column="of")


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ("stream == 'a'", ["a0", "a1"]),
        ("stream != 'a' and n > 0", ["b1"]),
        ("stream == 'a' and n == 0 or stream == 'b' and n == 1", ["a0", "b1"]),
        ("stream in ('b', 'c')", ["b0", "b1"]),
        ("stream is null", []),
        ([["stream", "starts with", "b"]], ["b0", "b1"]),
        ((pc.field("stream") == "b") & (pc.field("n") == 1), ["b1"]),
        ((pc.field("stream") == "b") | (pc.field("n") == 0), ["a0", "b0", "b1"]),
        ((pl.col("stream") == "b") & (pl.col("n") == 1), ["b1"]),
    ],
    ids=str,
)
def test_filters_on_the_name_are_exact(url: str, filters: object, expected: list[str]) -> None:
    for name in "ab":
        create(f"{url}/{name}", 2)
    assert [f"{row['stream']}{row['n']}" for row in rows(url, filters=filters)] == expected


def test_a_stream_that_the_name_rules_out_is_not_read(url: str) -> None:
    """Its only segment is gone: whoever reads it notices."""
    layout = segstore.Layout(inline_bytes=0)
    for name in "ab":
        create(f"{url}/{name}").append(pa.table({"n": [1]}), layout=layout)
    for segment in Path(f"{url.removeprefix('file://')}/a/segments").rglob("*"):
        if segment.is_file():
            segment.unlink()
    assert rows(url, filters="stream == 'b'") == [{"n": 1, "stream": "b"}]


def test_cuts_have_a_meaning_in_every_stream(url: str) -> None:
    for name in "ab":
        create(f"{url}/{name}", 2)
    middle = datetime.now(UTC)
    append(segstore.open(f"{url}/b"), 1)
    assert [(row["stream"], row["n"]) for row in rows(url, start=middle)] == [("b", 2)]
    assert len(rows(url, end=middle)) == 4
    for cut in (1, "version:1", "tag:x", "reader:x", segstore.open(f"{url}/a").position()):
        with pytest.raises(InvalidInputError, match="one stream"):
            rows(url, start=cut)


def test_only_the_last_part_of_a_location_is_a_pattern(url: str) -> None:
    for name in ("eu-1", "eu-2", "us-1", "e.-3"):
        create(f"{url}/{name}", 1)
    Path(f"{url.removeprefix('file://')}/eu-none").mkdir()
    found = pa.table(segstore.StreamSet(f"{url}/eu-*").scan())
    assert found["stream"].to_pylist() == ["eu-1", "eu-2"]
    assert pa.table(segstore.StreamSet(f"{url}/*-1").scan()).num_rows == 2
    with pytest.raises(NotFoundError):
        segstore.StreamSet(f"{url}/x*").scan()
    for wrong in (f"{url}/*/a*", f"{url}/eu-1"):
        with pytest.raises(InvalidInputError):
            segstore.StreamSet(wrong)


def test_a_loop_gives_what_is_new_and_streams_that_join(url: str) -> None:
    time = VirtualTime()
    one = create(f"{url}/a", 2)
    streams = segstore.StreamSet(f"{url}/*", clock=time.clock)
    loop = streams.follow(timeout=0)
    assert [*loop] == []
    append(one, 1)
    two = create(f"{url}/b", 2)
    time.advance(1)
    found = [(batch["stream"][0].as_py(), batch["n"].to_pylist()) for batch in loop]
    assert found == [("a", [2]), ("b", [0, 1])]
    append(two, 1)
    again = streams.follow(start=loop.position, timeout=0)
    assert [batch["n"].to_pylist() for batch in again] == [[2]]


def test_position_passes_what_was_done_and_errors_lose_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        create(f"{url}/{name}", 2)
    loop = segstore.StreamSet(f"{url}/*").follow(start="head", timeout=0)
    begun = loop.position
    assert next(loop)["stream"][0].as_py() == "a"
    assert loop.position == begun  # the batch is not done yet

    def fail(*_: object, **__: object) -> None:
        raise StorageError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr("segstore_ds.stream.stream_set.whole_reading", fail)
        with pytest.raises(StorageError):
            next(loop)
    assert [batch["stream"][0].as_py() for batch in loop] == ["a", "b"]
    assert [*segstore.StreamSet(f"{url}/*").follow(start=loop.position, timeout=0)] == []
    with pytest.raises(PositionError, match="another query"):
        segstore.StreamSet(f"{url}/*").follow(start='{"n": 1}')


def test_a_dropped_stream_is_an_error_or_leaves(url: str, caplog: pytest.LogCaptureFixture) -> None:
    one, _ = create(f"{url}/a", 1), create(f"{url}/b", 1)
    time = VirtualTime()
    streams = segstore.StreamSet(f"{url}/*", clock=time.clock)
    begun = streams.follow(start="head").position
    segstore.drop(one.url, confirm=one.url)
    with pytest.raises(NotFoundError, match="fail_on_data_loss") as refused:
        next(streams.follow(start=begun))
    assert refused.value.fields["streams"] == ["a"]
    create(f"{url}/a", 3)  # in its place
    with pytest.raises(NotFoundError, match="replaced"):
        next(streams.follow(start=begun))
    loop = streams.follow(start=begun, timeout=0, fail_on_data_loss=False)
    assert [batch["n"].to_pylist() for batch in loop] == [[0, 1, 2], [0]]
    assert "streams a of" in caplog.text


def test_events_below_the_head_are_an_error_or_passed(url: str) -> None:
    stream = create(f"{url}/a", 3)
    begun = segstore.StreamSet(f"{url}/*").follow(start="head").position
    stream.truncate(2)
    with pytest.raises(TruncatedError):
        next(segstore.StreamSet(f"{url}/*").follow(start=begun))
    how = {"start": begun, "timeout": 0, "fail_on_data_loss": False}
    loop = segstore.StreamSet(f"{url}/*").follow(**how)
    assert [batch["n"].to_pylist() for batch in loop] == [[2]]


def batches_of(url: str, **how: object) -> FolderBatches:
    clock = VirtualTime().clock
    folder = StreamFolder.open(f"{url}/*", None, single_writer=False, clock=clock)
    folder.look(whole=True)
    return FolderBatches(folder, "head", **how)


def sizes(batches: FolderBatches, most: int = 99) -> list[dict[str, int]]:
    """Return how many events of each stream each batch has."""
    found, before = [], batches.begin()
    while len(found) < most:
        end = batches.next(before)
        spans = end.spans(before)
        if not spans:
            break
        found.append({name: last - first for name, (first, last) in spans.items()})
        before = end
    return found


def test_limits_of_rows_hold_over_all_and_small_streams_do_not_wait(url: str) -> None:
    for name, count in (("a", 100), ("b", 2), ("c", 10)):
        create(f"{url}/{name}", count)
    found = sizes(batches_of(url, most_rows=30))
    assert found[0] == {"a": 18, "b": 2, "c": 10}
    assert [sum(each.values()) for each in found] == [30, 30, 30, 22]


def test_with_fewer_shares_than_streams_all_get_their_turn(url: str) -> None:
    for number in range(7):
        create(f"{url}/{number}", 20)
    found = sizes(batches_of(url, most_rows=3), most=14)
    assert all(sum(each.values()) == 3 for each in found)
    for first in range(10):  # no stream waits for more than four batches
        assert {name for each in found[first : first + 4] for name in each} == {*map(str, range(7))}
    late = sizes(batches_of(url, most_bytes=1), most=7)
    assert [*map(len, late)] == [1] * 7
    assert {name for each in late for name in each} == {*map(str, range(7))}


def test_limits_of_bytes_hold_over_all(url: str) -> None:
    layout = segstore.Layout(segment_format="arrow", compression="none")
    for name in "abc":
        create(f"{url}/{name}").append(pa.table({"n": [*range(5000)]}), layout=layout)
    (size,) = {s["bytes"] for s in pa.table(segstore.open(f"{url}/a").segments()).to_pylist()}
    found = sizes(batches_of(url, most_bytes=size))
    assert {name: count // 100 for name, count in found[0].items()} == dict.fromkeys("abc", 16)
    assert sum(found[0].values()) <= 5000
    assert len(found) in (3, 4)


def test_commits_that_were_lost_are_an_error(url: str, tmp_path: Path) -> None:
    """A stream that was set back to a backup, and written to since, has other events there."""
    stream = create(f"{url}/a", 1)
    shutil.copytree(tmp_path / "a", tmp_path / "backup" / "a")
    append(stream, 1)
    begun = segstore.StreamSet(f"{url}/a*").follow(start="tail").position
    shutil.rmtree(tmp_path / "a")
    shutil.copytree(tmp_path / "backup" / "a", tmp_path / "a")
    for _ in range(3):
        append(segstore.open(stream.url), 1)
    with pytest.raises(PositionError, match="gone from the log"):
        next(segstore.StreamSet(f"{url}/a*").follow(start=begun))


def test_offsets_that_others_wrote_are_refused() -> None:
    for value in ({}, {"streams": 1}, {"streams": {"a": {"offset": 1}}}, {"offset": 1}, None, 3):
        with pytest.raises(PositionError):
            Progress.parse(value)


def test_news_is_late_by_a_sixteenth_of_the_silence_at_most() -> None:
    open_storage("memory://late-streams")
    stream = create("memory://late-streams/a", 1)
    time = VirtualTime()
    streams = StreamFolder.open(
        "memory://late-streams/*", None, single_writer=False, clock=time.clock
    )
    streams.look()
    for silence_s in (1, 16, 600):
        for _ in range(silence_s * 4):
            time.advance(0.25)
            streams.look()
        append(stream, 1)
        waited_s = 0.0
        while streams.streams["a"][1].tail < stream.tail:
            time.advance(0.25)
            waited_s += 0.25
            streams.look()
        assert waited_s <= min(silence_s / 16, 30) + 0.5


def test_a_folder_that_has_just_been_seen_without_a_stream_is_asked_again_soon(
    url: str, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    time = VirtualTime()
    streams = StreamFolder.open(f"{url}/*", None, single_writer=False, clock=time.clock)
    streams.look()
    create(f"{url}/a", 1)
    time.advance(0.25)
    streams.look()
    assert [*streams.streams] == ["a"]


def test_a_listing_that_lacks_a_stream_does_not_drop_it(url: str) -> None:
    stream = create(f"{url}/a", 1)

    class Forgetful(WrappedStorage):
        def folders(self, prefix: str) -> tuple[str, ...]:
            return () if hidden else self.inner.folders(prefix)

        def sibling(self, url: str) -> Storage:
            return self.inner.sibling(url)

    hidden = False
    streams = StreamFolder(Forgetful(open_storage(url)), "*")
    streams.look()
    hidden = True
    streams.look(whole=True)
    assert [*streams.streams] == ["a"]
    segstore.drop(stream.url, confirm=stream.url)
    streams.look(whole=True)
    assert [*streams.streams] == []


def test_a_look_at_a_bucket_costs_what_is_new(s3_server: S3Server) -> None:
    """Over HTTP: streams that were created after a listing are seen, and quiet looks are free."""
    url = f"s3://{s3_server.new_bucket()}/s"
    options = s3_server.options
    for name in "abc":
        segstore.create(f"{url}/{name}", N, storage_options=options)
    time = VirtualTime()
    folder = StreamFolder.open(f"{url}/*", options, single_writer=False, clock=time.clock)
    assert len(s3_server.requests(folder.look)) <= 1 + 4 * 3
    time.advance(160)
    folder.look(whole=True)
    assert s3_server.requests(folder.look) == []
    stream = segstore.create(f"{url}/d", N, storage_options=options)
    time.advance(10)
    asked = s3_server.requests(folder.look)
    assert len(asked) <= 1 + 2 * 3 + 4, asked
    assert [*folder.streams] == [*"abcd"]
    stream.append(pa.table({"n": [1, 2]}))
    time.advance(30)
    folder.look()
    assert folder.streams["d"][1].tail == 2
    segstore.drop(stream.url, confirm=stream.url, storage_options=options)
    time.advance(30)
    folder.look()
    assert [*folder.streams] == [*"abc"]
    found = segstore.StreamSet(f"{url}/*", storage_options=options).scan(filters="stream == 'a'")
    assert pa.table(found).num_rows == 0
