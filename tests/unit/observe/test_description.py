"""What pictures show of long and odd streams: few values, none of them lost, and what is amiss."""

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
from picture_kit import NOON
from stream_kit import make_stream, wait

from segstore_ds.observe import description
from segstore_ds.observe.description import BARS, LANES, Bar, _bars, describe
from segstore_ds.observe.drawing import draw_stream
from segstore_ds.observe.figures import FollowerFigures, Lag, ReaderFigures, Segments
from segstore_ds.publish.snapshot import Published


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


def test_steps_tell_every_commit(monkeypatch):
    monkeypatch.setattr(description, "STEPS", 4)
    stream, storage = make_stream(30)
    stream.compact()
    wait(storage, 60)
    stream.tags.set("now")
    newest = stream.version
    stream.readers.register("named", start="tail")
    found = describe(stream._context, storage=False)
    assert len(found.steps) <= 4
    history = stream.history().read_all()
    assert sum(step.commits for step in found.steps) == history.num_rows
    assert (found.steps[0].first, found.steps[-1].last) == (0, stream.version)
    assert found.steps[-1].end == history["time"][-1].as_py()
    # Of the table, the commit that only names a reader is left out.
    assert [row["version"] for row in found.commits] == [
        *range(newest, newest - len(found.commits), -1)
    ]


def test_a_drawing_is_bounded_however_many_there_are():
    stream, _ = make_stream(2)
    found = describe(stream._context, storage=False)
    readers = tuple(
        ReaderFigures(f"reader-{n}", "", n % 20, Lag(20 - n % 20, 1, 1.0), 0, NOON, live=True)
        for n in range(500)
    )
    bars = tuple(Bar(n, n + 1, 400, 10**6 + n, "arrow") for n in range(BARS))
    tags = tuple((n, f"tag-{n}" * 20) for n in range(6))
    figures = replace(found.figures, readers=readers, tail=BARS)
    drawn = draw_stream(replace(found, figures=figures, bars=bars, tags=tags, tags_count=10_000))
    assert len(drawn) < 60_000
    assert drawn.count('class="line"') == LANES + 1 + 6 + 1
    assert "488 readers more" in drawn
    assert "9,994 tags more" in drawn


def test_losses_lapses_and_lost_followers_are_told():
    stream, _ = make_stream(3)
    found = describe(stream._context, storage=False)
    reader = ReaderFigures("late", "", 0, Lag(30, 0, None), 7, NOON, live=False)
    figures = replace(
        found.figures,
        readers=(reader,),
        followers=(FollowerFigures("file:///gone", None, None, None),),
        published=(Published("delta", "", 3, 7, 0, 10, 20, "why it lags", {}),),
    )
    drawn = draw_stream(replace(found, figures=figures))
    assert '<span class="alarm">30 events behind; 7 lost; lapsed<' in drawn
    assert '<span class="alarm">can&#x27;t be read<' in drawn
    assert re.search('title="Delta table: .*20 events behind: why it lags"', drawn)
