"""What a workload is, and how candidates are timed side by side."""

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

import psutil

from benchmarks.report import Report


@dataclass(frozen=True, slots=True)
class Settings:
    """How a workload is run; `rows` is its size, whatever that counts."""

    rows: int
    rounds: int
    folder: Path
    tiny: bool = False

    @property
    def rounds_text(self) -> str:
        """Say how candidates are timed, for the setup of a report."""
        if self.tiny:
            return "1, cold and tiny: shows that it works, and nothing else"
        return f"{self.rounds} interleaved, medians; one warm-up round before; page cache warm"

    @property
    def datasets(self) -> Path:
        """Where data sets are kept between runs."""
        return self.folder / "datasets"

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Give a fresh folder for output and remove it afterwards."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = Path(mkdtemp(prefix="run-", dir=self.folder))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Workload:
    """One benchmark: a line of meaning, its sizes, and what runs it."""

    meaning: str
    run: Callable[[Settings], Report]
    rows: int
    tiny_rows: int


@dataclass(slots=True)
class Timing:
    """The rounds of one candidate; `bytes` is what the last one left behind."""

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    bytes: int | None = None

    @property
    def median(self) -> float:
        """Median seconds of a round."""
        return statistics.median(self.seconds)

    def row(self, name: str, rows: int) -> dict[str, object]:
        """Give the candidate's row of a report."""
        shown: dict[str, object] = {
            "candidate": name,
            "seconds": round(self.median, 2),
            "spread": f"{min(self.seconds):.2f}-{max(self.seconds):.2f}",
            "cpu s": round(statistics.median(self.cpu_seconds), 2),
            "M rows/s": round(rows / self.median / 1e6, 2),
        }
        if self.bytes is not None:
            shown["bytes"] = self.bytes
            shown["bytes/row"] = round(self.bytes / rows, 2)
        return shown


Candidate = Callable[[Path], int | None]


def race(
    candidates: Mapping[str, Candidate], settings: Settings, scratch: Path
) -> dict[str, Timing]:
    """Time candidates in interleaved rounds: A B C A B C.

    Each call gets a folder that does not exist yet and may leave its output there; what it returns
    is the bytes of that, or None. A first round warms the JVM and the page cache and is not kept.
    """
    timings = {name: Timing() for name in candidates}
    for turn in range(0 if settings.tiny else -1, settings.rounds):
        for name, candidate in candidates.items():
            if not settings.tiny:
                _settle()
            folder = scratch / "output"
            cpu, start = cpu_seconds(), time.perf_counter()
            left = candidate(folder)
            seconds = time.perf_counter() - start
            if turn >= 0:
                timings[name].seconds.append(seconds)
                timings[name].cpu_seconds.append(cpu_seconds() - cpu)
                timings[name].bytes = left
            shutil.rmtree(folder, ignore_errors=True)
    return timings


def folder_bytes(folder: Path) -> int:
    """Add up the sizes of all files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _settle() -> None:
    # What the candidate before has left unwritten must not burden the next one.
    os.sync()


def cpu_seconds() -> float:
    """Return the CPU time of this process, its children and theirs, as far as they live."""
    total = 0.0
    here = psutil.Process()
    for process in (here, *here.children(recursive=True)):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue
    return total
