"""SVG by hand: ticks, rows of labels, texts that fit."""

import pytest

from segstore_ds.observe.canvas import (
    Canvas,
    Scale,
    round_ticks,
    shortened,
    text_width,
)


@pytest.mark.parametrize(
    ("span", "ticks"),
    [
        ((0, 1000), [0, 200, 400, 600, 800, 1000]),
        ((3, 4), [3, 4]),
        ((7, 7), [7]),
        ((1_000_001, 1_999_999), [1_200_000, 1_400_000, 1_600_000, 1_800_000]),
    ],
)
def test_ticks_are_round(span, ticks):
    assert round_ticks(*span, 6) == ticks


@pytest.mark.parametrize("most", [0, 2, 3, 7])
@pytest.mark.parametrize("end", [1, 9, 10, 11, 99, 1234, 10**12, 2**62])
def test_ticks_are_few_and_inside(end, most):
    ticks = round_ticks(0, end, most)
    assert 1 <= len(ticks) <= max(most, 2)
    assert 0 <= ticks[0] <= ticks[-1] <= end


def test_long_texts_lose_their_middle_and_keep_their_ends():
    text = "a-very-long-name-of-a-reader"
    short = shortened(text, 90)
    assert text_width(short) <= 90
    assert (short[:3], short[-3:]) == ("a-v", "der")
    assert shortened("ada", 90) == "ada"


def test_a_scale_keeps_what_is_outside_at_its_border():
    scale = Scale(10, 20, 0, 100)
    assert [scale(value) for value in (0, 10, 15, 20, 30)] == [0, 0, 50, 100, 100]
    assert Scale(5, 5, 1, 9)(7) == 1


def test_texts_and_attributes_are_escaped():
    canvas = Canvas(100)
    canvas.add("rect", "<b>", class_='"><script>')
    canvas.text(1, 2, "<script>", class_="muted")
    svg = canvas.svg("</title><script>", "&", name="x", style="")
    assert "<script>" not in svg
    assert "<b>" not in svg
    assert svg.count("&lt;script&gt;") == 3
