"""The picture of a stream as a Figure of matplotlib."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, StrMethodFormatter

from segstore_ds.observe.description import LANES, MIXED, Description
from segstore_ds.observe.figures import FORMATS
from segstore_ds.options.printable import printable
from segstore_ds.options.quantities import with_unit

_BYTES = FuncFormatter(lambda value, _place: with_unit(round(value)))
_EVENTS = StrMethodFormatter("{x:,.0f}")
_LABEL = 60  # characters of a name


def build_figure(found: Description) -> Figure:
    """Return the plots of a stream; the Figure belongs to no window."""
    figure = Figure(figsize=(11, 8), layout="constrained")
    title = _plain(found.figures.url, 120)
    if found.figures.damaged:
        title += "\nsome of it can't be read, and is left out: see segstore verify"
    figure.suptitle(title)
    segments, history, lag, storage = figure.subplots(2, 2).flat
    _plot_segments(segments, found)
    _plot_history(history, found)
    readers = sorted(found.figures.readers, key=lambda reader: (-reader.lag.events, reader.name))
    named = [(reader.name, reader.lag.events) for reader in readers[:LANES]]
    _plot_named(lag, "Lag of readers", "events behind", named, _EVENTS)
    held = [(each.why, each.bytes) for each in found.figures.storage or ()]
    _plot_named(storage, "What holds storage", "bytes", held, _BYTES)
    return figure


def _plot_segments(axes: Axes, found: Description) -> None:
    axes.set(title="Segments", xlabel="offset", ylabel="bytes per segment")
    for form in (*FORMATS, MIXED):
        if bars := [bar for bar in found.bars if bar.format == form]:
            heights = [bar.bytes / bar.segments for bar in bars]
            widths = [bar.end - bar.start for bar in bars]
            axes.bar([bar.start for bar in bars], heights, widths, align="edge", label=form)
    if found.bars:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(_BYTES)
    axes.axvline(found.figures.head, color="black", label="head")
    axes.axvline(found.figures.tail, color="black", linestyle="--", label="tail")
    for offset, _ in found.tags:
        axes.axvline(offset, color="gray", linestyle=":")
    axes.xaxis.set_major_formatter(_EVENTS)
    axes.legend(fontsize="small")


def _plot_history(axes: Axes, found: Description) -> None:
    axes.set(title="Growth and commits", ylabel="events held")
    times: Any = [step.end for step in found.steps]
    axes.step(times, [step.tail - step.head for step in found.steps], where="post")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(_EVENTS)
    locator = AutoDateLocator(tz="UTC")
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz="UTC"))
    versions = axes.twinx()
    versions.set(ylabel="commits (dashed)")
    versions.step(times, [step.last for step in found.steps], "--", where="post", color="gray")


def _plot_named(
    axes: Axes, title: str, words: str, values: Sequence[tuple[str, int]], form: Any
) -> None:
    axes.set(title=title, xlabel=words)
    axes.barh(range(len(values)), [value for _, value in values])
    axes.set_yticks(range(len(values)), [_plain(name, _LABEL) for name, _ in values])
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(form)
    axes.tick_params("x", labelrotation=30)


def _plain(text: str, most: int) -> str:
    """Return a text of at most so many characters, which matplotlib takes for no formula."""
    text = printable(text)
    shown = text if len(text) <= most else f"{text[: most - 1]}…"
    return shown.replace("$", r"\$")
