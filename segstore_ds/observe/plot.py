"""The picture of a stream as a Figure of matplotlib."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    StrMethodFormatter,
)

from segstore_ds.observe.canvas import LIGHT, shortened
from segstore_ds.observe.description import (
    APPENDS,
    LANES,
    MIXED,
    OTHERS,
    REWRITES,
    Description,
)
from segstore_ds.observe.figures import FORMATS
from segstore_ds.options.quantities import with_unit

_KINDS = {
    APPENDS: ("appends", LIGHT["arrow"]),
    REWRITES: ("compactions and redactions", LIGHT["both"]),
    OTHERS: ("other commits", LIGHT["hidden"]),
}
_TICKS = 5  # of an axis, so that their labels don't meet
_NARROW = 1000  # a range of sizes in which 2 and 5 have labels, too
_LABEL = 150  # wide, of a name


def build_figure(found: Description) -> Figure:
    """Return the plots of a stream; the Figure belongs to no window."""
    figure = Figure(figsize=(11, 8), layout="constrained")
    title = shortened(found.figures.url, 900)
    if found.figures.damaged:
        title += "\nsome of it can't be read, and is left out: see segstore verify"
    figure.suptitle(title)
    segments, history, lag, storage = figure.subplots(2, 2).flat
    _plot_segments(segments, found)
    _plot_history(history, found)
    _plot_lag(lag, found)
    _plot_storage(storage, found)
    return figure


def _plot_segments(axes: Axes, found: Description) -> None:
    figures = found.figures
    axes.set(title="Segments", xlabel="offset", ylabel="bytes per segment")
    for form in (*FORMATS, MIXED):
        bars = [bar for bar in found.bars if bar.format == form]
        if bars:
            axes.bar(
                [bar.start for bar in bars],
                [bar.bytes / bar.segments for bar in bars],
                [bar.end - bar.start for bar in bars],
                align="edge",
                color=LIGHT[form],
                edgecolor="white",
                linewidth=0.3,
                label=form,
            )
    if found.bars:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(_bytes))
        low, high = axes.get_ylim()
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        axes.yaxis.set_minor_formatter(
            FuncFormatter(_bytes) if high / low < _NARROW else NullFormatter()
        )
        axes.set_xlim(found.start, figures.tail)
    axes.axvline(figures.head, color=LIGHT["ink"], label="head")
    axes.axvline(figures.tail, color=LIGHT["ink"], linestyle="--", label="tail")
    for tag in found.tags:
        axes.axvline(tag.offset, color=LIGHT["muted"], linestyle=":", label=f"_tag {tag.name}")
    axes.xaxis.set_major_locator(MaxNLocator(_TICKS))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.legend(fontsize="small")


def _plot_history(axes: Axes, found: Description) -> None:
    """Plot the events held as a line, and the commits so far by kind below it."""
    axes.set(title="Growth and commits", ylabel="events held")
    times: Any = [step.end for step in found.steps]
    held = [step.tail - step.head for step in found.steps]
    axes.step(times, held, where="post", color=LIGHT["parquet"], label="events held")
    axes.fill_between(times, held, step="post", color=LIGHT["parquet"], alpha=0.2)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    locator = AutoDateLocator(tz="UTC")
    axes.tick_params("x", labelrotation=30)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz="UTC"))
    counts = axes.twinx()
    counts.set(ylabel="commits so far")
    for kind, (words, colour) in _KINDS.items():
        sums, total = [], 0
        for step in found.steps:
            total += step.commits[kind]
            sums.append(total)
        if total:
            counts.step(times, sums, where="post", color=colour, label=words)
    counts.set_ylim(bottom=0)
    lines = [*axes.get_lines(), *counts.get_lines()]
    axes.legend(
        lines, [str(line.get_label()) for line in lines], fontsize="small", loc="upper left"
    )


def _plot_lag(axes: Axes, found: Description) -> None:
    axes.set(title="Lag of readers", xlabel="events behind")
    readers = sorted(found.figures.readers, key=lambda reader: (-reader.lag.events, reader.name))
    readers = readers[:LANES]
    colours = [LIGHT["reader"] if reader.live else LIGHT["hidden"] for reader in readers]
    names = [_plain(reader.name) for reader in readers]
    axes.barh(range(len(readers)), [reader.lag.events for reader in readers], color=colours)
    _name_rows(axes, names)
    axes.xaxis.set_major_locator(MaxNLocator(_TICKS))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _plot_storage(axes: Axes, found: Description) -> None:
    axes.set(title="What holds storage", xlabel="bytes")
    held = found.figures.storage or ()
    axes.barh(range(len(held)), [each.bytes for each in held], color=LIGHT["parquet"])
    _name_rows(axes, [_plain(each.why) for each in held])
    axes.xaxis.set_major_formatter(FuncFormatter(_bytes))
    axes.xaxis.set_major_locator(MaxNLocator(_TICKS))


def _name_rows(axes: Axes, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    if not names:
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", color=LIGHT["muted"])


def _plain(text: str) -> str:
    """Return a text that matplotlib does not take for a formula."""
    return shortened(text, _LABEL, 8).replace("$", r"\$")


def _bytes(value: float, _place: int) -> str:
    return with_unit(round(value))
