"""Reports: setup first, then the numbers, then what flatters us."""

import datetime as dt
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from segstore_ds.version import __version__

PACKAGES = ("pyspark", "pyarrow", "zstandard", "fsspec")


@dataclass(frozen=True, slots=True)
class Ratio:
    """One ratio within a run; `goal` is the least that satisfies, or with `most` the most."""

    name: str
    value: float
    goal: float | None = None
    most: bool = False

    def text(self) -> str:
        """Give it as one line."""
        if self.goal is None:
            return f"{self.value:6.2f}  {self.name}"
        met = self.value <= self.goal if self.most else self.value >= self.goal
        bound = "at most" if self.most else "at least"
        return (
            f"{self.value:6.2f}  {self.name} "
            f"(goal: {bound} {self.goal:g}, {'met' if met else 'MISSED'})"
        )


@dataclass(frozen=True, slots=True)
class Found:
    """What one run of a workload found; `setup` adds to what is said of the machine."""

    rows: Sequence[Mapping[str, Any]]
    ratios: Sequence[Ratio] = ()
    setup: Mapping[str, Any] = field(default_factory=dict)
    raw: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """One run of a workload."""

    workload: str
    meaning: str
    setup: Mapping[str, Any]
    found: Found
    flatters: Sequence[str]

    def text(self) -> str:
        """Give it for people."""
        lines = [f"# {self.workload}: {self.meaning}", "", "## Setup"]
        lines += [f"{name}: {value}" for name, value in {**self.setup, **self.found.setup}.items()]
        lines += ["", "## Numbers", *_table(self.found.rows), ""]
        lines += [ratio.text() for ratio in self.found.ratios]
        lines += ["", "## What flatters us, and what does not"]
        return "\n".join([*lines, *(f"- {fact}" for fact in self.flatters)])

    def json(self) -> str:
        """Give it for programs."""
        shown = asdict(self) | asdict(self.found) | {"setup": {**self.setup, **self.found.setup}}
        del shown["found"]
        return json.dumps(shown, indent=1, default=str) + "\n"


def machine(folder: Path) -> dict[str, Any]:
    """Describe where a run takes place."""
    memory = psutil.virtual_memory().total / (1 << 30)
    return {
        "time": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores ({_processor()}), {memory:.0f} GiB, "
        f"load before {os.getloadavg()[0]:.2f}",
        "disk": f"{_filesystem(folder)} at {folder}",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "versions": ", ".join(
            [f"segstore-ds {__version__}", *(f"{name} {version(name)}" for name in PACKAGES)]
        ),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _filesystem(folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    best = max(
        (
            part
            for part in psutil.disk_partitions(all=True)
            if folder.resolve().is_relative_to(part.mountpoint)
        ),
        key=lambda part: len(part.mountpoint),
        default=None,
    )
    return best.fstype if best else "unknown filesystem"


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[place]) for line in cells) for place in range(len(names))]
    shown = []
    for line in cells:
        first = line[0].ljust(widths[0])
        rest = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        shown.append("  ".join([first, *rest]).rstrip())
    return shown


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
