"""Draws a stream in HTML and CSS: segments and commits as bars, positions as lines.

The browser does the layout, so a drawing fits any width. Every text from a stream is escaped.
"""

import datetime as dt
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from segstore_ds.observe.description import LANES, MIXED, Bar, Description
from segstore_ds.observe.figures import FORMATS, ReaderFigures
from segstore_ds.options.quantities import printable_html as escape
from segstore_ds.options.quantities import with_unit

# Colours by name, light and dark; notebooks say which of the two they show.
_COLOURS: Mapping[str, tuple[str, str]] = {
    "ground": ("#ffffff", "#0d1117"),
    "ink": ("#1f2328", "#e6edf3"),
    "muted": ("#59636e", "#9ba5b0"),
    "line": ("#d1d9e0", "#343b44"),
    "arrow": ("#d97706", "#f0a44b"),
    "parquet": ("#2563eb", "#6ea8fe"),
    "both": ("#7a6a9d", "#b3a5d3"),
    "hidden": ("#8b949e", "#7d8590"),
    "reader": ("#1a7f5a", "#4cc38a"),
    "alarm": ("#c0362c", "#ff8a80"),
}
_LIGHT, _DARK = (
    "".join(f"--{name}:{pair[dark]};" for name, pair in _COLOURS.items()) for dark in (0, 1)
)
_DARK_NOTEBOOKS = '[data-jp-theme-light="false"] .segstore,.vscode-dark .segstore'
_LIGHT_NOTEBOOKS = '[data-jp-theme-light="true"] .segstore,.vscode-light .segstore'


STYLE = (
    f".segstore{{{_LIGHT}color:var(--ink)}}"
    f"@media (prefers-color-scheme:dark){{.segstore{{{_DARK}}}}}"
    f"{_DARK_NOTEBOOKS}{{{_DARK}}}{_LIGHT_NOTEBOOKS}{{{_LIGHT}}}"
    ".segstore .row{display:flex;flex-wrap:wrap;justify-content:space-between;gap:0 16px;"
    "margin-top:8px;font-size:12px;overflow-wrap:anywhere;font-variant-numeric:tabular-nums}"
    ".segstore .muted{color:var(--muted)}.segstore .alarm{color:var(--alarm)}"
    ".segstore .chart{position:relative;height:120px;border-bottom:1.5px solid var(--ink)}"
    ".segstore .chart i{position:absolute;bottom:0;min-width:1px;box-sizing:border-box}"
    ".segstore i.one{border-right:1px solid var(--ground)}"
    ".segstore .key{display:inline-block;width:11px;height:11px;border-radius:2px}"
    ".segstore .line{height:4px;border-radius:2px;background:var(--line)}"
    ".segstore .line i{display:block;height:4px;border-radius:2px}"
    + "".join(
        f".segstore i.{name}{{background:var(--{name})}}" for name in (*FORMATS, MIXED, "reader")
    )
    + ".segstore i.hidden{background:var(--hidden);opacity:.45}"
    ".segstore i.lapsed{background:var(--hidden)}"
)


@dataclass(frozen=True, slots=True)
class Lane:
    """A line from the first offset to a position: of a reader, a copy, a table or a tag."""

    name: str
    text: str  # how far behind it is
    offset: int
    style: str = "reader"  # or `lapsed`, for tags, lapsed readers and unreadable copies
    alarm: bool = False  # whether the text is in the colour of an alarm
    why: str = ""  # shown when the pointer is on it


def draw_stream(found: Description) -> str:
    """Return a stream's segments by offset, and the positions of readers, copies and tags."""
    figures = found.figures
    words = f"{figures.events:,} events in {figures.segments:,} segments by offset"
    ended = " (sealed)" if figures.sealed else ""
    ends = [f"head {figures.head:,}", f"tail {figures.tail:,}{ended}"]
    if found.start < figures.head:
        ends.insert(0, f"offset {found.start:,}")
    elif figures.head > 0:
        ends.insert(1, f"{figures.head:,} earlier events are dropped")
    sizes = [bar.bytes / bar.segments for bar in found.bars]
    least, most = _powers(sizes)
    scale = (
        f"{with_unit(10**least)} to {with_unit(10**most)}, logarithmic" if sizes else "no events"
    )
    boxes = (
        box
        for bar, size in zip(found.bars, sizes, strict=True)
        for box in _boxes(bar, (math.log10(max(size, 1)) - least) / (most - least), found)
    )
    chart = _chart("size of segments, by offset", scale, boxes, ends, words=words)
    return _legend(found) + chart + "".join(_draw_lane(lane, found) for lane in _lanes(found))


def draw_history(found: Description) -> str:
    """Return the number of events held, and the number of commits, over time."""
    steps = found.steps
    first, last = steps[0].start, steps[-1].end
    whole = max((last - first).total_seconds(), 1e-6)

    def at(time: dt.datetime) -> float:
        return (time - first).total_seconds() / whole

    held = [step.tail - step.head for step in steps]
    until = [*(at(step.end) for step in steps[1:]), 1.0]
    most_held, most_commits = max(1, *held), max(step.commits for step in steps)
    growth = (
        _box((at(step.end), after), events / most_held, "parquet", f"{events:,} events held")
        for step, after, events in zip(steps, until, held, strict=True)
    )
    describe = "{0.commits:,} commits, versions {0.first:,} to {0.last:,}".format
    commits = (
        _box((at(step.start), at(step.end)), step.commits / most_commits, "both", describe(step))
        for step in steps
    )
    ends = [moment(first), moment(last)]
    return _chart("events held", f"at most {most_held:,}", growth, ends) + _chart(
        "commits", f"at most {most_commits:,} in a 120th of the time", commits, ends
    )


def moment(time: dt.datetime) -> str:
    """Return a time as text."""
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


def _chart(
    label: str, scale: str, boxes: Iterable[str], ends: Sequence[str], *, words: str = ""
) -> str:
    """Return bars, with a line of text above and one below them."""
    chart = f'<div class="chart" role="img" aria-label="{escape(words or label)}">'
    return f"{_row((label, scale), 'muted')}{chart}{''.join(boxes)}</div>{_row(ends)}"


def _row(texts: Iterable[str], style: str = "") -> str:
    spans = "".join(f"<span>{escape(text)}</span>" for text in texts)
    return f'<div class="row {style}">{spans}</div>'


def _box(span: tuple[float, float], height: float, style: str, title: str) -> str:
    """Return a bar; its span and height are fractions of the chart's."""
    left, wide = 100 * span[0], 100 * (span[1] - span[0])
    place = f"left:{left:.3f}%;width:{wide:.3f}%;height:{max(100 * height, 1):.1f}%"
    return f'<i class="{style}" style="{place}" title="{escape(title)}"></i>'


def _powers(sizes: Sequence[float]) -> tuple[int, int]:
    """Return the powers of ten around some sizes; the lower one is at most half of the smallest."""
    least = math.floor(math.log10(max(min(sizes, default=2), 2) / 2))
    return least, max(math.ceil(math.log10(max([*sizes, 1]))), least + 1)


def _boxes(bar: Bar, height: float, found: Description) -> Iterator[str]:
    """Yield a bar in two parts: the events that the head hides, and the others."""
    title, one = _bar_title(bar), " one" if bar.segments == 1 else ""
    head = min(max(found.figures.head, bar.start), bar.end)
    spans = ((bar.start, head, "hidden"), (head, bar.end, bar.format))
    for start, end, style in spans:
        if start < end:
            yield _box((_across(found, start), _across(found, end)), height, style + one, title)


def _across(found: Description, offset: int) -> float:
    """Return the place of an offset as a fraction of the axis."""
    span = max(found.figures.tail - found.start, 1)
    return min(max((offset - found.start) / span, 0.0), 1.0)


def _bar_title(bar: Bar) -> str:
    offsets = f"offsets {bar.start:,} to {bar.end:,}: {bar.end - bar.start:,} events"
    if bar.segments == 1:
        return f"{offsets}, {with_unit(bar.bytes)}, {bar.format}"
    mean = with_unit(round(bar.bytes / bar.segments))
    return f"{offsets} in {bar.segments:,} segments of {mean} on average, {bar.format}"


def _legend(found: Description) -> str:
    present = {bar.format for bar in found.bars}
    items = [(form, f"{form} segments") for form in (*FORMATS, MIXED) if form in present]
    items += [("hidden", "hidden by the head")] if found.start < found.figures.head else []
    keys = (
        f'<span><i class="key {style}"></i> <span>{words}</span></span>' for style, words in items
    )
    return f'<div class="row muted">{"".join(keys)}</div>'


def _lanes(found: Description) -> list[Lane]:
    """Return readers, the furthest behind first, then copies of the stream, then tags."""
    readers = sorted(found.figures.readers, key=lambda one: (-one.lag.events, one.name))
    lanes = [_reader_lane(reader) for reader in readers[:LANES]]
    if rest := readers[LANES:]:
        lanes.append(Lane(f"{len(rest):,} readers more", "closer to the tail", rest[0].offset))
    return [*lanes, *_copy_lanes(found), *_tag_lanes(found)]


def _copy_lanes(found: Description) -> Iterator[Lane]:
    for name, events, why in found.figures.copies():
        if events is None:
            yield Lane(name, "can't be read", found.start, "lapsed", alarm=True)
        else:
            yield Lane(name, _behind(events), found.figures.tail - events, why=why)


def _tag_lanes(found: Description) -> Iterator[Lane]:
    for offset, name in found.tags:
        yield Lane(f"tag {name}", f"at {offset:,}", offset, "lapsed")
    if more := found.tags_count - len(found.tags):
        yield Lane(f"{more:,} tags more", "behind these", found.tags[-1][0], "lapsed")


def _reader_lane(reader: ReaderFigures) -> Lane:
    text = _behind(reader.lag.events)
    if reader.lag.bytes:
        text += f", {with_unit(reader.lag.bytes)}"
    if reader.lag.seconds:
        text += f", {with_duration(reader.lag.seconds)}"
    if reader.lost_events:
        text += f"; {reader.lost_events:,} lost"
    style = "reader" if reader.live else "lapsed"
    text += "" if reader.live else "; lapsed"
    return Lane(reader.name, text, reader.offset, style, alarm=bool(reader.lost_events))


def _behind(events: int) -> str:
    if not events:
        return "up to date"
    return f"{events:,} event{'s' if events > 1 else ''} behind"


def with_duration(seconds: float) -> str:
    """Return a duration as text.

    >>> with_duration(0.2), with_duration(90), with_duration(7200), with_duration(200_000)
    ('0.2 s', '90 s', '120 min', '56 h')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    for unit, length, most in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 72)):
        if seconds <= most * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def _draw_lane(lane: Lane, found: Description) -> str:
    title = f"{lane.name}: offset {lane.offset:,}, {lane.text}" + (lane.why and f": {lane.why}")
    style, wide = "alarm" if lane.alarm else "muted", 100 * _across(found, lane.offset)
    return (
        f'<div class="row" title="{escape(title)}"><span>{escape(lane.name)}</span>'
        f'<span class="{style}">{escape(lane.text)}</span></div>'
        f'<div class="line"><i class="{lane.style}" style="width:{wide:.2f}%"></i></div>'
    )
