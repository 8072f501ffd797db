"""Draws what `produced_to_readable` found: `python -m benchmarks.picture FOUND.json TARGET.svg`.

A panel for each rate, a line for each format: over the seconds of a run, how old the oldest event
of each batch was when it could be read, on a logarithmic scale.
"""

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path

Moments = list[tuple[float, float, float]]  # when it could be read, ages of newest and oldest event

WIDTH, PANEL, GAP, LEFT, TOP = 720, 150, 44, 56, 34
COLOURS = {"segstore": "#c2410c", "delta": "#1d4ed8", "iceberg": "#0e7490", "parquet": "#6b7280"}
NAMES = {"delta": "Delta Lake", "iceberg": "Iceberg, Spark 4.1", "parquet": "Spark's file sink"}
LEAST_S, MOST_S, MARKS_S = 0.08, 5.0, (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
COLUMN = 2  # pixels
STYLE = (
    "text{font:12px sans-serif;fill:currentColor}svg{color:#1f2937}"
    "@media(prefers-color-scheme:dark){svg{color:#e5e7eb}}"
)


def main() -> None:
    """Read a report and write the picture."""
    found, target = sys.argv[1:]
    Path(target).write_text(draw(json.loads(Path(found).read_text())["raw"]), encoding="utf-8")


def draw(raw: dict[str, Moments]) -> str:
    """Return the picture of what a report keeps as raw: moments by session, format and rate."""
    panels: dict[int, dict[str, Moments]] = defaultdict(dict)
    for key, moments in raw.items():
        session, peer, rate = key.split(" ")
        # Ours and Parquet's are in several sessions: the newest counts.
        if session in {"newest", peer}:
            panels[int(rate)][peer] = moments
    height = TOP + len(panels) * (PANEL + GAP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>How old the oldest event of each batch was when it could be read</title>",
        f"<style>{STYLE}</style>",
        *_legend({peer for panel in panels.values() for peer in panel}),
    ]
    for number, (speed, peers) in enumerate(sorted(panels.items())):
        lines += _panel(speed, peers, TOP + number * (PANEL + GAP) + 18)
    return "\n".join([*lines, "</svg>", ""])


def _legend(peers: set[str]) -> Iterator[str]:
    for number, peer in enumerate(name for name in COLOURS if name in peers):
        x = LEFT + number * 150
        yield f'<rect x="{x}" y="8" width="18" height="4" fill="{COLOURS[peer]}"/>'
        yield f'<text x="{x + 24}" y="15">{escape(NAMES.get(peer, peer))}</text>'


def _panel(rate: int, peers: dict[str, Moments], top: int) -> Iterator[str]:
    last = max(moments[-1][0] for moments in peers.values())
    yield f'<text x="{LEFT}" y="{top - 5}">{rate:,} events a second</text>'
    for mark in MARKS_S:
        y = top + _height(mark)
        yield f'<path d="M{LEFT} {y:.1f}H{WIDTH - 8}" stroke="currentColor" opacity="0.2"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{mark:g} s</text>'
    end = f"{last:.0f} s"
    yield f'<text x="{WIDTH - 8}" y="{top + PANEL + 14}" text-anchor="end">{end}</text>'
    for peer, moments in peers.items():
        points = " ".join(_points(moments, last, top))
        drawn = f'fill="none" stroke="{COLOURS[peer]}" stroke-width="1.2"'
        yield f'<polyline points="{points}" {drawn}/>'


def _points(moments: Iterable[tuple[float, float, float]], last: float, top: int) -> Iterator[str]:
    """Yield each column's worst moment."""
    worst: dict[int, float] = {}
    for at, _newest, oldest in moments:
        x = LEFT + COLUMN * round(at / last * (WIDTH - 8 - LEFT) / COLUMN)
        worst[x] = max(worst.get(x, 0), oldest)
    return (f"{x},{top + _height(age):.1f}" for x, age in sorted(worst.items()))


def _height(age_s: float) -> float:
    share = math.log(min(max(age_s, LEAST_S), MOST_S) / LEAST_S) / math.log(MOST_S / LEAST_S)
    return PANEL * (1 - share)


if __name__ == "__main__":
    main()
