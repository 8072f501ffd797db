"""SVG by hand: colours, escaped text, scales, round ticks. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from segstore_ds.options.printable import printable_html as escape

# Colours by name: light, dark, and as notebooks choose one.
LIGHT: Mapping[str, str] = {
    "ground": "#ffffff",
    "ink": "#1f2328",
    "muted": "#59636e",
    "line": "#d1d9e0",
    "arrow": "#d97706",
    "parquet": "#2563eb",
    "both": "#7a6a9d",
    "hidden": "#8b949e",
    "reader": "#1a7f5a",
    "alarm": "#c0362c",
}
DARK: Mapping[str, str] = {
    "ground": "#0d1117",
    "ink": "#e6edf3",
    "muted": "#9ba5b0",
    "line": "#343b44",
    "arrow": "#f0a44b",
    "parquet": "#6ea8fe",
    "both": "#b3a5d3",
    "hidden": "#7d8590",
    "reader": "#4cc38a",
    "alarm": "#ff8a80",
}
# JupyterLab and VS Code say on the body which of the two they show.
_DARK_NOTEBOOKS = '[data-jp-theme-light="false"] .segstore,.vscode-dark .segstore'
_LIGHT_NOTEBOOKS = '[data-jp-theme-light="true"] .segstore,.vscode-light .segstore'


def _variables(colours: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())


COLOURS = (
    f".segstore{{{_variables(LIGHT)}}}"
    f"@media (prefers-color-scheme:dark){{.segstore{{{_variables(DARK)}}}}}"
    f"{_DARK_NOTEBOOKS}{{{_variables(DARK)}}}{_LIGHT_NOTEBOOKS}{{{_variables(LIGHT)}}}"
)
DRAWING = (
    "svg.segstore{display:block;width:100%;height:auto;"
    "font:12px system-ui,-apple-system,'Segoe UI','Open Sans',sans-serif}"
    ".segstore text{fill:var(--ink);font-variant-numeric:tabular-nums}"
    ".segstore .muted{fill:var(--muted)}.segstore .alarm{fill:var(--alarm)}"
    ".segstore .strong{font-weight:600}"
    ".segstore .grid{stroke:var(--line);stroke-width:1}"
    ".segstore .edge{stroke:var(--ink);stroke-width:1.5}"
    ".segstore .arrow{fill:var(--arrow)}.segstore .parquet{fill:var(--parquet)}"
    ".segstore .both{fill:var(--both)}.segstore .hidden{fill:var(--hidden);opacity:.45}"
    ".segstore .track{fill:var(--line)}.segstore .reader{fill:var(--reader)}"
    ".segstore .lapsed{fill:var(--hidden)}"
    ".segstore .held{fill:var(--parquet);opacity:.22}"
    ".segstore .grown{fill:none;stroke:var(--parquet);stroke-width:1.5}"
)
_LETTER = 0.6  # of a font's size: no usual sans-serif is wider on average


@dataclass(slots=True)
class Canvas:
    """Gathers the elements of an SVG of one width; its height is what was drawn."""

    width: int
    height: float = 0.0
    elements: list[str] = field(default_factory=list)

    def add(self, name: str, title: str = "", **attributes: object) -> None:
        """Add an element without text; `title` is what a pointer on it and screen readers show."""
        inside = f"<title>{escape(title)}</title>" if title else ""
        ends = f">{inside}</{name}>" if inside else "/>"
        self.elements.append(f"<{name}{_attributes(attributes)}{ends}")

    def text(self, x: float, y: float, text: str, **attributes: object) -> None:
        """Add a line of text whose baseline is at y."""
        place = _attributes({"x": _short(x), "y": _short(y), **attributes})
        self.elements.append(f"<text{place}>{escape(text)}</text>")

    def legend(
        self, items: Sequence[tuple[str, str]], left: float, y: float, *, first: float
    ) -> None:
        """Add a key of styles and their meanings, from `first` on, in as many lines as it takes."""
        x = first
        for style, text in items:
            taken = 32 + text_width(text)
            if x + taken > self.width and x > left:
                x, y = left, y + 18
            self.add("rect", x=x, y=y - 9, width=11, height=11, rx=2, class_=style)
            self.text(x + 17, y, text, class_="muted")
            x += taken
        self.height = y + 8

    def svg(self, title: str, desc: str, *, name: str, style: str) -> str:
        """Return the SVG; `name` tells its texts from those of other drawings on a page."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="segstore {name}" role="img" '
            f'viewBox="0 0 {self.width} {math.ceil(self.height)}" '
            f'aria-labelledby="{name}-title {name}-desc">'
            f'<title id="{name}-title">{escape(title)}</title>'
            f'<desc id="{name}-desc">{escape(desc)}</desc>'
            f"<style>{style}</style>{''.join(self.elements)}</svg>"
        )


def _attributes(attributes: dict[str, object]) -> str:
    parts = []
    for name, value in attributes.items():
        shown = _short(value) if isinstance(value, float) else str(value)
        parts.append(f' {name.rstrip("_").replace("_", "-")}="{escape(shown)}"')
    return "".join(parts)


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def text_width(text: str, size: float = 12) -> float:
    """Return how wide a text is at most, about: fonts differ."""
    return len(text) * size * _LETTER


def shortened(text: str, width: float, size: float = 12) -> str:
    """Return a text that fits into a width, with its middle left out if needed.

    >>> shortened("a-long-name", 60, 10), shortened("short", 60, 10)
    ('a-lo…-name', 'short')
    """
    most = max(int(width / size / _LETTER), 3)
    if len(text) <= most:
        return text
    left = (most - 1) // 2
    return f"{text[:left]}…{text[len(text) - (most - 1 - left) :]}"


def round_ticks(start: float, end: float, most: int) -> list[int]:
    """Return round whole numbers within ``[start, end]``, at most so many, at one distance.

    >>> round_ticks(0, 1000, 6), round_ticks(3, 4, 5), round_ticks(7, 7, 5)
    ([0, 200, 400, 600, 800, 1000], [3, 4], [7])
    """
    span, most = max(end - start, 1), max(most, 2)
    power = 10 ** max(math.floor(math.log10(span / most)), 0)
    step = next(by * power for by in (1, 2, 5, 10, 20) if span / (by * power) + 1 <= most)
    first = math.ceil(start / step) * step
    return list(range(first, math.floor(end) + 1, step)) or [int(start)]


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values of ``[start, end]`` to places of ``[low, high]``."""

    start: float
    end: float
    low: float
    high: float

    def __call__(self, value: float) -> float:
        """Return the place of a value; what lies outside is at the border."""
        if self.end <= self.start:
            return self.low
        share = (value - self.start) / (self.end - self.start)
        return self.low + min(max(share, 0.0), 1.0) * (self.high - self.low)
