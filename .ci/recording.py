"""Records `segstore demo` as segstore_ds/docs/demo.svg, an animation that needs no script.

Run it by the Python of an environment with the extra demo, on a machine with Java. What is shown is
what the command printed, in that order; waits are shortened, and before each title there is time to
read. Who asks for less motion sees the first screen.
"""

import codecs
import fcntl
import os
import re
import struct
import subprocess
import sys
import tempfile
import termios
from html import escape
from itertools import groupby
from pathlib import Path
from time import monotonic

OUTPUT = Path(__file__).parents[1] / "segstore_ds/docs/demo.svg"
COLUMNS, ROWS = 115, 27
WIDTH_PX, LINE_PX, MARGIN_PX, BAR_PX = 8.43, 18, 14, 26  # of a character, a line, the frame
TITLE_S, WAIT_S, LINE_S, LAST_S = 2.5, 0.8, 0.05, 6.0  # before a title, at most, at least, the end
STYLES = {"1": "b", "36": "c"}  # of SGR: bold, cyan
Line = list[tuple[str, str]]  # texts, each with its class


def record() -> list[tuple[float, str]]:
    """Run the demo on a terminal of its own; return its lines, each with the time it came."""
    ours, its = os.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    lines, rest, start = [(0.0, "$ segstore demo")], "", monotonic()
    with tempfile.TemporaryDirectory() as folder:
        command = [Path(sys.executable).with_name("segstore"), "demo"]
        terminal = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
        run = subprocess.Popen(command, stdout=its, stderr=its, cwd=folder, env=terminal)
        os.close(its)
        decoder = codecs.getincrementaldecoder("utf-8")()
        while data := _read(ours):
            *whole, rest = (rest + decoder.decode(data)).replace("\r\n", "\n").split("\n")
            lines += [(monotonic() - start, line.replace(folder, "~")) for line in whole]
        if run.wait():
            sys.exit("\n".join(line for _, line in lines))
    return lines


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # how Linux says that nobody writes to the terminal any more
        return b""


def parse(lines: list[str]) -> list[Line]:
    """Return the texts of each line with the classes that their colours stand for."""
    found, style = [], ""
    for line in lines:
        found.append([])
        for part in re.split(r"(\x1b\[[\d;]*[A-Za-z])", line):
            if part.startswith("\x1b["):
                style = " ".join(STYLES.get(code, "") for code in part[2:-1].split(";")).strip()
            elif part:
                found[-1].append((style, part))
    return found


def pace(lines: list[tuple[float, str]]) -> list[float]:
    """Return when each line is shown: as they came, but with time to read and little to wait."""
    shown, at, before = [], 0.0, 0.0
    for came, text in lines:
        at += TITLE_S if "== " in text else min(max(came - before, LINE_S), WAIT_S)
        shown.append(at)
        before = came
    return shown


def _span(part: tuple[str, str]) -> str:
    style, text = part[0], escape(part[1], quote=False)
    return f'<tspan class="{style}">{text}</tspan>' if style else text


def draw(lines: list[Line], times: list[float]) -> str:
    """Return the animation: the lines move up, and a cover over what is still to come down."""
    whole = times[-1] + LAST_S
    cover, roll = ["0%{transform:none}"], ["0%{transform:none}"]
    for at, numbers in groupby(range(len(lines)), key=times.__getitem__):
        count, percent = max(numbers) + 1, f"{100 * at / whole:.2f}%"
        cover.append(f"{percent}{{transform:translateY({count * LINE_PX}px)}}")
        if count > ROWS:
            roll.append(f"{percent}{{transform:translateY({(ROWS - count) * LINE_PX}px)}}")
    width, inner = round(COLUMNS * WIDTH_PX) + 2 * MARGIN_PX, ROWS * LINE_PX
    texts = [
        f'<text y="{number * LINE_PX + 13}">{"".join(map(_span, line))}</text>'
        for number, line in enumerate(lines)
        if line
    ]
    high = len(lines) * LINE_PX
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {inner + BAR_PX + 2 * MARGIN_PX}" \
role="img" aria-label="A recording of segstore demo in a terminal">
<style>
text{{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;\
white-space:pre;text-rendering:geometricPrecision;fill:#d5dae3}}
.b{{font-weight:bold;fill:#fff}}.c{{fill:#7cc7f2}}
.roll{{animation:roll {whole:.1f}s step-end infinite}}
.cover{{transform:translateY({high}px);animation:cover {whole:.1f}s step-end infinite}}
@keyframes roll{{{"".join(roll)}}}
@keyframes cover{{{"".join(cover)}}}
@media (prefers-reduced-motion:reduce){{.roll,.cover{{animation:none}}}}
</style>
<rect width="100%" height="100%" rx="8" fill="#161b22"/>
<g fill="#3d4450"><circle cx="20" cy="18" r="5"/><circle cx="38" cy="18" r="5"/>\
<circle cx="56" cy="18" r="5"/></g>
<svg x="{MARGIN_PX}" y="{BAR_PX + MARGIN_PX}" width="{width - 2 * MARGIN_PX}" height="{inner}">
<g class="roll" xml:space="preserve"><g transform="translate(4)">
{chr(10).join(texts)}
</g><rect class="cover" width="100%" height="{high}" fill="#161b22"/>
</g></svg></svg>
"""


if __name__ == "__main__":
    told = record()
    OUTPUT.write_text(draw(parse([text for _, text in told]), pace(told)), encoding="utf-8")
    sys.stdout.write(f"{OUTPUT}: {len(told)} lines, {OUTPUT.stat().st_size:,} bytes\n")
