"""What a workload is, and how candidates are timed side by side."""

import os
import shutil
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from tempfile import mkdtemp
from types import FrameType
from typing import Any, TypeVar

import psutil

import segstore_ds
from benchmarks.report import Found, Ratio
from segstore_ds.storage.base import StorageStats

T = TypeVar("T")
Candidate = Callable[[Path], int | None]


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


Run = Callable[[Settings], Found]


@dataclass(frozen=True, slots=True)
class Workload:
    """One benchmark: what runs it, its sizes, and what flatters us in it."""

    run: Run
    rows: int
    tiny_rows: int
    flatters: Sequence[str]

    @property
    def meaning(self) -> str:
        """What it measures, by its docstring."""
        return " ".join((self.run.__doc__ or "").split()).rstrip(".")


WORKLOADS: dict[str, Workload] = {}


def workload(*flatters: str, rows: int, tiny_rows: int) -> Callable[[Run], Run]:
    """Enter a function under its name; its docstring is what the report says it measures."""

    def enter(run: Run) -> Run:
        WORKLOADS[run.__name__] = Workload(run, rows, tiny_rows, flatters)
        return run

    return enter


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

    def time(self, call: Callable[[], T]) -> T:
        """Add a round, and return what it returned."""
        cpu, start = cpu_seconds(), time.perf_counter()
        done = call()
        self.seconds.append(time.perf_counter() - start)
        self.cpu_seconds.append(cpu_seconds() - cpu)
        return done

    @property
    def cpu(self) -> float:
        """Median CPU seconds of a round, of all processes."""
        return statistics.median(self.cpu_seconds)

    def row(self, name: str, rows: int | None = None) -> dict[str, Any]:
        """Give the candidate's row of a report, with rates where `rows` says how many there are."""
        shown: dict[str, Any] = {
            "candidate": name,
            "seconds": rounded(self.median),
            "spread": f"{rounded(min(self.seconds))}-{rounded(max(self.seconds))}",
            "cpu s": rounded(self.cpu),
        }
        if rows is not None:
            shown["M rows/s"] = round(rows / self.median / 1e6, 2)
        if self.bytes is not None:
            shown["bytes"] = self.bytes
            shown |= {"bytes/row": round(self.bytes / rows, 2)} if rows else {}
        return shown


class Race(dict[str, Timing]):
    """The timings of candidates by name."""

    def faster(self, ours: str, rival: str, goal: float | None = None, *, note: str = "") -> Ratio:
        """Return how many times as fast as a rival we are."""
        name = f"speed: {ours} / {rival}{note}"
        return Ratio(name, self[rival].median / self[ours].median, goal)

    def rows(self, count: int | None = None) -> list[dict[str, Any]]:
        """Give the rows of a report."""
        return [timing.row(name, count) for name, timing in self.items()]

    @property
    def raw(self) -> dict[str, list[float]]:
        """The seconds of each round."""
        return {name: timing.seconds for name, timing in self.items()}


def race(
    candidates: Mapping[str, Candidate],
    settings: Settings,
    scratch: Path,
    prepare: Callable[[str, Path], object] | None = None,
) -> Race:
    """Time candidates in interleaved rounds, another one first in each: A B C, B C A.

    Each call gets a folder, empty but for what `prepare` puts there by the candidate's name, and
    may leave its output there; what it returns is the bytes of that, or None. A first round warms
    the JVM and the page cache and is not kept.
    """
    timings = Race({name: Timing() for name in candidates})
    order = deque(candidates.items())
    for turn in range(0 if settings.tiny else -1, settings.rounds):
        order.rotate(-1)
        for name, candidate in order:
            folder = scratch / "output"
            if prepare is not None:
                prepare(name, folder)
            if not settings.tiny:
                os.sync()  # what the one before has left unwritten must not burden this one
            timing = timings[name] if turn >= 0 else Timing()
            timing.bytes = timing.time(partial(candidate, folder))
            shutil.rmtree(folder, ignore_errors=True)
    return timings


def timed(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def cpu_timed(call: Callable[[], object]) -> float:
    """Return the seconds of CPU that a call takes in this process."""
    start = time.process_time()
    call()
    return time.process_time() - start


def beside_bare(
    calls: Iterable[Callable[[], object]],
    bare: Callable[[int], object],
    stats: StorageStats,
    what: str,
    **others: Callable[[int], object],
) -> dict[str, Any]:
    """Time calls in turns with bare ones, which are given a number; count requests and bytes.

    Of `others`, which are given a number as well, the CPU is measured alone.
    """
    requests, written = stats.cost()
    seconds, cpu, floors = list[float](), list[float](), list[float]()
    rest: dict[str, list[float]] = {name: [] for name in others}
    for number, call in enumerate(calls):
        cpu.append(cpu_timed(lambda call=call: seconds.append(timed(call))))
        floors.append(timed(partial(bare, number)))
        for name, other in others.items():
            rest[name].append(cpu_timed(partial(other, number)))
    now = stats.cost()
    return {
        **distribution(seconds),
        **distribution(cpu, "CPU "),
        **distribution(floors, "bare "),
        **{f"{name} CPU ms": distribution(found)["median ms"] for name, found in rest.items()},
        f"requests/{what}": round((now[0] - requests) / len(seconds), 3),
        f"bytes/{what}": (now[1] - written) // len(seconds),
    }


def walk(what: str, call: Callable[[], object], *goals: float) -> list[Ratio]:
    """Count the calls of our functions that a call makes, and their files; the least of some."""
    package, runs = str(Path(segstore_ds.__file__).parent), list[list[str]]()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            runs[-1].append(frame.f_code.co_filename)

    for _ in range(6):
        runs.append([])
        threading.setprofile(note)
        sys.setprofile(note)
        call()
        sys.setprofile(None)
        threading.setprofile(None)
    found = min(runs, key=len)
    counts = zip_longest(("calls", "files"), (len(found), len({*found})), goals)
    return [Ratio(f"{name} of {what}", count, goal, most=True) for name, count, goal in counts]


def distribution(seconds: Iterable[float], what: str = "") -> dict[str, float]:
    """Give the columns of a report for the times of many calls, in milliseconds."""
    ms = sorted(one * 1e3 for one in seconds)
    found = (statistics.fmean(ms), statistics.median(ms), quantile(ms, 0.99), ms[-1])
    names = ("mean", "median", "p99", "max")
    return {f"{what}{name} ms": rounded(value) for name, value in zip(names, found, strict=True)}


def rounded(value: float) -> float:
    """Round to what can be told apart: three places below 1, two above."""
    return round(value, 3 if value < 1 else 2)


def folder_bytes(folder: Path) -> int:
    """Add up the sizes of all files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


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
