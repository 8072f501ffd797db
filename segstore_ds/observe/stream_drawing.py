"""The drawing of a stream: its segments along the offsets, and who is where."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from segstore_ds.observe.canvas import (
    COLOURS,
    DRAWING,
    Canvas,
    Scale,
    round_ticks,
    shortened,
    text_width,
)
from segstore_ds.observe.description import LANES, MIXED, Bar, Description
from segstore_ds.observe.figures import FORMATS, ReaderFigures
from segstore_ds.options.quantities import with_unit

_LEFT, _RIGHT = 56, 16
_PLOT_HEIGHT = 132
_LANE_HEIGHT = 36
_ROW = 16
_LEAST_BAR = 1.0  # wide, so that a bar of few events shows
_MEANING = "size of segments, by offset"


@dataclass(frozen=True, slots=True)
class Lane:
    """Somebody who has read or copied the events up to an offset, or a tag there.

    Attributes:
        name: Who.
        said: How far that is, in words.
        offset: Up to where.
        style: `reader`, or `lapsed` for a tag and for one that holds nothing back.
        alarm: Whether the words tell of a loss.
        why: What a pointer on it shows besides.
    """

    name: str
    said: str
    offset: int
    style: str = "reader"
    alarm: bool = False
    why: str = ""


def draw_stream(found: Description, *, width: int, name: str) -> str:
    """Return a picture of a stream as SVG."""
    canvas = Canvas(width)
    figures = found.figures
    across = Scale(found.start, max(figures.tail, found.start + 1), _LEFT, width - _RIGHT)
    _draw_legend(canvas, found)
    _draw_segments(canvas, found, across)
    _draw_offsets(canvas, found, across)
    for lane in _lanes(found):
        _draw_lane(canvas, lane, across, figures.tail)
    canvas.height += 6
    return canvas.svg(
        f"Segments of {figures.url}", describe_in_words(found), name=name, style=COLOURS + DRAWING
    )


def describe_in_words(found: Description) -> str:
    """Return what the drawing of a stream shows, as sentences."""
    figures = found.figures
    ended = " The stream is sealed." if figures.sealed else ""
    held = f"{figures.segments:,} segments of {with_unit(figures.bytes)}"
    offsets = f"{figures.head:,} to {figures.tail:,}"
    parts = [f"{figures.events:,} events at the offsets {offsets}, in {held}.{ended}"]
    return " ".join([*parts, *(f"{lane.name}: {lane.said}." for lane in _lanes(found))])


def _draw_legend(canvas: Canvas, found: Description) -> None:
    present = [form for form in (*FORMATS, MIXED) if any(bar.format == form for bar in found.bars)]
    words = {MIXED: "both formats"}
    items = [(form, words.get(form, f"{form} segments")) for form in present]
    if found.start < found.figures.head:
        items.append(("hidden", "hidden by the head"))
    canvas.text(_LEFT, 12.0, _MEANING, class_="muted")
    canvas.legend(items, _LEFT, 12.0, first=_LEFT + text_width(_MEANING) + 8)


def _draw_segments(canvas: Canvas, found: Description, across: Scale) -> None:
    top = canvas.height + 6
    bottom = top + _PLOT_HEIGHT
    canvas.height = bottom
    sizes = [bar.bytes / bar.segments for bar in found.bars]
    least = 10 ** math.floor(math.log10(max(min(sizes, default=1), 1)))
    most = 10 ** math.ceil(math.log10(max([*sizes, least * 10])))
    upward = Scale(math.log10(least) - 0.15, math.log10(most), bottom, top)
    powers = range(round(math.log10(least)), round(math.log10(most)) + 1)
    for power in list(powers)[:: max(math.ceil(len(powers) / 5), 1)] if found.bars else ():
        y = upward(power)
        canvas.add("line", x1=across.low, x2=across.high, y1=y, y2=y, class_="grid")
        label = with_unit(10**power).replace(".0 ", " ")
        canvas.text(_LEFT - 8, y + 4, label, class_="muted", text_anchor="end")
    if not found.bars:
        middle = (across.low + across.high) / 2
        canvas.text(middle, (top + bottom) / 2, "no events", class_="muted", text_anchor="middle")
    for bar, size in zip(found.bars, sizes, strict=True):
        _draw_bar(canvas, bar, across, (upward(math.log10(max(size, 1))), bottom), found)


def _draw_bar(
    canvas: Canvas, bar: Bar, across: Scale, ends: tuple[float, float], found: Description
) -> None:
    left, right = across(bar.start), across(bar.end)
    # Of joined segments the borders are unknown: they show as one silhouette.
    gap = 1.0 if bar.segments == 1 and right - left > 3 else 0.0
    place = {"y": ends[0], "height": max(ends[1] - ends[0], 1.5)}
    title = _bar_title(bar)
    hidden = across(found.figures.head) - left if bar.start < found.figures.head else 0.0
    if hidden:
        canvas.add("rect", title, x=left, width=hidden, class_="hidden", **place)
        left += hidden
    wide = max(right - left - gap, _LEAST_BAR)
    canvas.add("rect", title, x=left, width=wide, class_=bar.format, **place)


def _bar_title(bar: Bar) -> str:
    offsets = f"offsets {bar.start:,} to {bar.end:,}: {bar.end - bar.start:,} events"
    if bar.segments == 1:
        return f"{offsets}, {with_unit(bar.bytes)}, {bar.format}"
    mean = with_unit(round(bar.bytes / bar.segments))
    return f"{offsets} in {bar.segments:,} segments of {mean} on average, {bar.format}"


def _draw_offsets(canvas: Canvas, found: Description, across: Scale) -> None:
    """Draw the axis, the head and the tail."""
    figures, y = found.figures, canvas.height
    top = y - _PLOT_HEIGHT
    canvas.add("line", x1=across.low, x2=across.high, y1=y, y2=y, class_="edge")
    wide = text_width(f"{figures.tail:,}") + 24
    ticks = round_ticks(across.start, figures.tail, int((across.high - across.low) / wide))
    for tick in ticks if found.bars else ():
        x = across(tick)
        canvas.add("line", x1=x, x2=x, y1=y, y2=y + 4, class_="edge")
        half = text_width(f"{tick:,}") / 2
        anchor = "end" if x + half > canvas.width else "middle"
        canvas.text(x, y + 17, f"{tick:,}", class_="muted", text_anchor=anchor)
    head, tail = across(figures.head), across(figures.tail if found.bars else across.end)
    canvas.add("line", x1=head, x2=head, y1=top, y2=y, class_="edge")
    canvas.add("line", x1=tail, x2=tail, y1=top, y2=y, class_="edge")
    ended = " (sealed)" if figures.sealed else ""
    first, last = f"head {figures.head:,}", f"tail {figures.tail:,}{ended}"
    before = head + text_width(first) > across.high
    y += 34
    canvas.text(head, y, first, class_="strong", text_anchor="end" if before else "start")
    ends = head if before else head + text_width(first)
    if ends > tail - text_width(last):
        y += _ROW
    canvas.text(tail, y, last, class_="strong", text_anchor="end")
    if figures.head > 0:
        dropped = f"{figures.head:,} earlier events are dropped"
        if found.start < figures.head:
            dropped = f"{figures.head:,} earlier events are dropped or hidden"
        canvas.text(across.low, y + _ROW, dropped, class_="muted")
        y += _ROW
    canvas.height = y + 8


def _lanes(found: Description) -> list[Lane]:
    """Return readers, the furthest behind first, then what copies the stream, then tags."""
    figures = found.figures
    readers = sorted(figures.readers, key=lambda reader: (-reader.lag.events, reader.name))
    lanes = [_reader_lane(reader) for reader in readers]
    shown = lanes[:LANES]
    if len(lanes) > len(shown):
        rest = f"{len(lanes) - len(shown):,} readers more"
        shown.append(Lane(rest, "closer to the tail", readers[LANES].offset))
    return [*shown, *_copy_lanes(found), *_tag_lanes(found)]


def _tag_lanes(found: Description) -> Iterator[Lane]:
    for tag in found.tags:
        yield Lane(f"tag {tag.name}", f"at {tag.offset:,}", tag.offset, "lapsed")
    more = found.tags_count - len(found.tags)
    if more:
        yield Lane(f"{more:,} tags more", "behind these", found.tags[-1].offset, "lapsed")


def _copy_lanes(found: Description) -> Iterator[Lane]:
    figures = found.figures
    for name, events, why in figures.copies():
        if events is None:
            yield Lane(name, "can't be asked", found.start, "lapsed", alarm=True)
        else:
            yield Lane(name, _behind(events), figures.tail - events, why=why)


def _reader_lane(reader: ReaderFigures) -> Lane:
    said = _behind(reader.lag.events)
    if reader.lag.bytes:
        said += f", {with_unit(reader.lag.bytes)}"
    if reader.lag.seconds:
        said += f", {with_duration(reader.lag.seconds)}"
    if reader.lost_events:
        said += f"; {reader.lost_events:,} lost"
    style = "reader" if reader.live else "lapsed"
    said += "" if reader.live else "; lapsed"
    return Lane(reader.name, said, reader.offset, style, alarm=bool(reader.lost_events))


def _behind(events: int) -> str:
    if not events:
        return "up to date"
    return f"{events:,} event{'s' if events > 1 else ''} behind"


def with_duration(seconds: float) -> str:
    """Return seconds for people.

    >>> with_duration(0.2), with_duration(90), with_duration(7200), with_duration(200_000)
    ('0.2 s', '90 s', '120 min', '56 h')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    for unit, length, most in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 72)):
        if seconds <= most * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def _draw_lane(canvas: Canvas, lane: Lane, across: Scale, tail: int) -> None:
    top = canvas.height + 4
    room = across.high - across.low
    said = shortened(lane.said, room * 0.7)
    name = shortened(lane.name, room - text_width(said) - 12)
    canvas.text(across.low, top + 12, name)
    style = "alarm" if lane.alarm else "muted"
    canvas.text(across.high, top + 12, said, class_=style, text_anchor="end")
    y, x = top + 19, across(min(lane.offset, tail))
    title = f"{lane.name}: offset {lane.offset:,}, {lane.said}" + (lane.why and f": {lane.why}")
    canvas.add("rect", x=across.low, y=y, width=room, height=4, rx=2, class_="track")
    canvas.add("rect", x=across.low, y=y, width=x - across.low, height=4, rx=2, class_=lane.style)
    canvas.add("circle", title, cx=x, cy=y + 2, r=4.5, class_=lane.style)
    canvas.height = top + _LANE_HEIGHT - 4
