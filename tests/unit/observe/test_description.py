"""What pictures show of long and odd streams: few values, and none of them lost."""

from itertools import pairwise

import numpy as np
from stream_kit import STAGED, make_stream, numbers, wait

import segstore_ds as segstore
from segstore_ds.observe import description
from segstore_ds.observe.description import (
    BARS,
    STEPS,
    _bars,
    describe,
)
from segstore_ds.observe.figures import Segments

PARQUET = segstore.Layout(inline_bytes=0, segment_format="parquet")


def test_bars_of_many_segments_are_few_and_lose_none():
    count, random = 100_000, np.random.default_rng(1)
    rows = random.integers(1, 10_000, count)
    sizes, starts = rows * 8, np.cumsum(rows) - rows + 77
    bars = _bars(Segments(starts, rows, sizes, np.zeros(count, np.int64)), int(rows.sum()) + 77)
    assert len(bars) <= BARS
    assert (bars[0].start, bars[-1].end) == (77, rows.sum() + 77)
    assert all(bar.end == after.start for bar, after in pairwise(bars))
    assert sum(bar.segments for bar in bars) == count
    assert sum(bar.bytes for bar in bars) == sizes.sum()


def test_a_large_segment_among_small_ones_keeps_its_own_bar():
    rows = np.array([10, 10, 1_000_000, 10, 10])
    starts, formats = np.cumsum(rows) - rows, np.array([0, 0, 1, 0, 1])
    bars = _bars(Segments(starts, rows, rows, formats), int(rows.sum()))
    # What begins within one part of 240 is one bar.
    assert [(bar.segments, bar.format) for bar in bars] == [(3, "both"), (2, "both")]
    assert [(bar.start, bar.end) for bar in bars] == [(0, 1_000_020), (1_000_020, 1_000_040)]


def test_commits_are_those_that_did_more_than_name_a_reader():
    stream, _ = make_stream(3)
    stream.readers.register("slow", owner="test", start=0)
    commits = describe(stream._context, storage=False).commits
    assert [row["operation"] for row in commits][-1] == "create"
    assert len(commits) == stream.version


def test_bars_are_the_segments_of_a_short_stream():
    stream, _ = make_stream(0)
    for size, layout in ((30, STAGED), (20, PARQUET), (10, STAGED)):
        stream.append(numbers(0, size), layout=layout)
    stream.truncate(35)
    found = describe(stream._context, storage=False)
    rows = stream.segments().read_all().to_pylist()
    assert [(bar.start, bar.end, bar.bytes, bar.format) for bar in found.bars] == [
        (row["start"], row["end"], row["bytes"], row["format"]) for row in rows
    ]
    assert (found.start, found.figures.head) == (30, 35)
    assert [*found.segments] == rows[::-1]
    assert found.columns == {"n": "int64", "s": "string"}
    assert found.figures.storage is None


def test_steps_tell_every_commit(monkeypatch):
    monkeypatch.setattr(description, "STEPS", 4)
    stream, storage = make_stream(30)
    stream.compact()
    wait(storage, 60)
    stream.tags.set("now")
    found = describe(stream._context, storage=False)
    assert len(found.steps) <= 4
    history = stream.history().read_all()
    assert sum(step.commits for step in found.steps) == history.num_rows
    assert (found.steps[0].first, found.steps[-1].last) == (0, stream.version)
    assert found.steps[-1].end == history["time"][-1].as_py()
    assert [row["version"] for row in found.commits] == [
        *range(stream.version, stream.version - len(found.commits), -1)
    ]


def test_a_long_history_is_read_from_its_newest_commits(monkeypatch):
    monkeypatch.setattr(description, "COMMITS_READ", 10)
    stream, _ = make_stream(40)
    found = describe(stream._context, storage=False)
    assert (found.steps[0].first, found.steps[-1].last) == (31, 40)
    assert len(found.steps) <= STEPS


def test_tags_are_bounded_and_counted():
    stream, _ = make_stream(3)
    for place in range(20):
        stream.tags.set(f"t{place}", 29 - place)
    found = describe(stream._context, storage=False)
    assert (found.tags_count, len(found.tags)) == (20, description.TAGS_SHOWN)
    assert found.tags[0][0] == 10


def test_an_empty_stream_has_no_bars():
    stream, _ = make_stream(0)
    found = describe(stream._context, storage=True)
    assert (found.bars, found.segments, found.tags) == ((), (), ())
    assert (found.start, len(found.steps)) == (0, 1)
