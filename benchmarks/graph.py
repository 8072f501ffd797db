"""Small line graphs as SVG, without a plotting library."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760, 220, 80, 34, 30
COLOURS = ("#1f5fa8", "#c2571a", "#2b8a3e", "#8a2b82", "#555555")
TICKS = 4


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph: lines by name over shared places, such as days; both axes begin at 0."""

    title: str
    places: Sequence[float]
    lines: Mapping[str, Sequence[float]]


def draw(panels: Sequence[Panel]) -> str:
    """Return the panels, one below the other, as an SVG document."""
    height = HEIGHT * len(panels)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        parts.append(f'<g transform="translate(0 {number * HEIGHT})">')
        parts += [*_draw_axes(panel), *_draw_lines(panel), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _ends(panel: Panel) -> tuple[float, float]:
    most = max(max(values) for values in panel.lines.values())
    return max(panel.places), _round_up(most)


def _round_up(most: float) -> float:
    """Return the next number of 1, 2 or 5 times a power of ten.

    >>> _round_up(13_000), _round_up(0)
    (20000.0, 1.0)
    """
    step = 1.0
    while step * 10 <= most:
        step *= 10
    return next(step * factor for factor in (1, 2, 5, 10) if step * factor >= most)


def _x(panel: Panel, place: float) -> float:
    return LEFT + (WIDTH - LEFT - 20) * place / _ends(panel)[0]


def _y(panel: Panel, value: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / _ends(panel)[1]


def _draw_axes(panel: Panel) -> list[str]:
    last, most = _ends(panel)
    parts = [f'<text x="{LEFT}" y="14" font-weight="bold">{panel.title}</text>']
    for tick in range(TICKS + 1):
        y = _y(panel, most * tick / TICKS)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - 20}" stroke="#ddd"/>')
        label = f"{most * tick / TICKS:,.4g}" if most < 10 else f"{most * tick / TICKS:,.0f}"
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
        x = _x(panel, last * tick / TICKS)
        label = f"{last * tick / TICKS:.3g}"
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 12}" text-anchor="middle">{label}</text>')
    return parts


def _draw_lines(panel: Panel) -> list[str]:
    parts, x = [], float(LEFT)
    for colour, (name, values) in zip(COLOURS, panel.lines.items(), strict=False):
        points = " ".join(
            f"{_x(panel, place):.1f},{_y(panel, value):.1f}"
            for place, value in zip(panel.places, values, strict=True)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
        parts.append(f'<text x="{x:.0f}" y="29" fill="{colour}">{name}</text>')
        x += 8 * len(name) + 16
    return parts
