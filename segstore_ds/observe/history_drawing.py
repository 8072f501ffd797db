"""The drawing of a history: how many events the stream held, and the commits, over time."""

import datetime as dt

from segstore_ds.observe.canvas import COLOURS, DRAWING, Canvas, Scale, round_ticks, text_width
from segstore_ds.observe.description import Description

_LEFT, _RIGHT = 56, 16
_PLOT_HEIGHT = 92
_LEAST_BAR = 2.0


def draw_history(found: Description, *, width: int, name: str) -> str:
    """Return a picture of the growth and of the commits over time as SVG."""
    canvas = Canvas(width)
    first, last = found.steps[0], found.steps[-1]
    start, end = first.start.timestamp(), last.end.timestamp()
    across = Scale(start, max(end, start + 1e-6), _LEFT, width - _RIGHT)
    _draw_growth(canvas, found, across)
    _draw_commits(canvas, found, across)
    _draw_times(canvas, (first.start, last.end), across)
    words = (
        f"{last.last - first.first + 1:,} commits from {_moment(first.start)} to "
        f"{_moment(last.end)}; the tail is at {last.tail:,}, the head at {last.head:,}."
    )
    title = f"History of {found.figures.url}"
    return canvas.svg(title, words, name=name, style=COLOURS + DRAWING)


def _draw_growth(canvas: Canvas, found: Description, across: Scale) -> None:
    canvas.text(across.low, 12, "events held", class_="muted")
    top, bottom = 20.0, 20.0 + _PLOT_HEIGHT
    held = [step.tail - step.head for step in found.steps]
    upward = _draw_grid(canvas, max(held), (top, bottom), across)
    points = []
    before = bottom
    for step, events in zip(found.steps, held, strict=True):
        x, y = across(step.end.timestamp()), upward(events)
        points += [f"{x:.1f},{before:.1f}", f"{x:.1f},{y:.1f}"]
        before = y
    points.append(f"{across.high:.1f},{before:.1f}")
    closed = [*points, f"{across.high:.1f},{bottom}", f"{across.low:.1f},{bottom}"]
    canvas.add("polygon", "events held", points=" ".join(closed), class_="held")
    canvas.add("polyline", points=" ".join(points), class_="grown")
    canvas.height = bottom


def _draw_commits(canvas: Canvas, found: Description, across: Scale) -> None:
    canvas.text(across.low, canvas.height + 28, "commits", class_="muted")
    top = canvas.height + 40
    bottom = top + _PLOT_HEIGHT * 0.7
    upward = _draw_grid(canvas, max(step.commits for step in found.steps), (top, bottom), across)
    for step in found.steps:
        left = min(across(step.start.timestamp()), across.high - _LEAST_BAR)
        wide = max(across(step.end.timestamp()) - left - 0.5, _LEAST_BAR)
        y = upward(step.commits)
        title = f"{step.commits:,} commits, versions {step.first:,} to {step.last:,}"
        canvas.add("rect", title, x=left, width=wide, y=y, height=bottom - y, class_="parquet")
    canvas.height = bottom


def _draw_grid(canvas: Canvas, most: int, ends: tuple[float, float], across: Scale) -> Scale:
    """Draw lines at round numbers up to a little above `most`, and return the scale."""
    ticks = round_ticks(0, max(most, 1), 4)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 1
    upward = Scale(0, max(ticks[-1] + (step if ticks[-1] < most else 0), 1), ends[1], ends[0])
    for tick in [*ticks, int(upward.end)] if ticks[-1] < upward.end else ticks:
        y = upward(tick)
        canvas.add("line", x1=across.low, x2=across.high, y1=y, y2=y, class_="grid")
        canvas.text(across.low - 8, y + 4, _short_count(tick), class_="muted", text_anchor="end")
    return upward


def _short_count(number: int) -> str:
    for unit, power in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= power:
            return f"{number / power:g} {unit}"
    return f"{number}"


def _draw_times(canvas: Canvas, ends: tuple[dt.datetime, dt.datetime], across: Scale) -> None:
    y = canvas.height + 17
    canvas.add(
        "line", x1=across.low, x2=across.high, y1=canvas.height, y2=canvas.height, class_="edge"
    )
    first, last = _moment(ends[0]), _moment(ends[1])
    canvas.text(across.low, y, first, class_="muted")
    if last != first:
        y += 0 if across.low + text_width(first + last) + 16 < across.high else 16
        canvas.text(across.high, y, last, class_="muted", text_anchor="end")
    canvas.height = y + 8


def _moment(time: dt.datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"
