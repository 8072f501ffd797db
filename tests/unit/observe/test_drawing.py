"""The drawing of a stream: what many readers take, and what is told of losses."""

import re
from dataclasses import replace

from picture_kit import NOON
from stream_kit import make_stream

from segstore_ds.observe.description import BARS, LANES, Bar, describe
from segstore_ds.observe.drawing import draw_stream
from segstore_ds.observe.figures import FollowerFigures, Lag, ReaderFigures
from segstore_ds.publish.snapshot import Published


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
    assert '<span class="alarm">can&#x27;t be asked<' in drawn
    assert re.search('title="Delta table: .*20 events behind: why it lags"', drawn)


def test_the_smallest_bar_is_seen_and_the_axis_begins_with_what_is_hidden():
    stream, _ = make_stream(2)
    found = describe(stream._context, storage=False)
    bars = (Bar(0, 500, 1, 10**6, "parquet"), Bar(500, 900, 1, 1_000, "arrow"))
    drawn = draw_stream(replace(found, figures=replace(found.figures, head=100), bars=bars))
    heights = [float(each) for each in re.findall(r"height:([\d.]+)%", drawn)]
    assert len(heights) == 3  # the hidden part of a segment, the rest of it, and the other one
    assert min(heights) > 20
    assert [*re.findall(">(offset 0|head 100)<", drawn)] == ["offset 0", "head 100"]
