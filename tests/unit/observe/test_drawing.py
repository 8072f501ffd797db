"""The drawing of a stream: what many readers take, and what is told of losses."""

import re
from dataclasses import replace

from stream_kit import make_stream

from segstore_ds.observe.description import Bar, describe
from segstore_ds.observe.drawing import draw_stream


def test_the_smallest_bar_is_seen_and_the_axis_begins_with_what_is_hidden():
    stream, _ = make_stream(2)
    found = describe(stream._context, storage=False)
    bars = (Bar(0, 500, 1, 10**6, "parquet"), Bar(500, 900, 1, 1_000, "arrow"))
    drawn = draw_stream(replace(found, figures=replace(found.figures, head=100), bars=bars))
    heights = [float(each) for each in re.findall(r"height:([\d.]+)%", drawn)]
    assert len(heights) == 3  # the hidden part of a segment, the rest of it, and the other one
    assert min(heights) > 20
    assert [*re.findall(">(offset 0|head 100)<", drawn)] == ["offset 0", "head 100"]
