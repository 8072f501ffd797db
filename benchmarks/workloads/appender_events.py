"""Events of 100 bytes, one call each, through a long-lived appender."""

import cProfile
import pstats
import time

import pyarrow as pa

import segstore_ds as segstore
from benchmarks.report import Ratio, Report, machine
from benchmarks.workload import Settings, Workload

MEANING = "events of 100 bytes, one call each, through appender(): events/s, bytes per write"
SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("text", pa.string())])
GOAL = 200_000
FLATTERS = (
    "the events are made beforehand; one thread, one flush at the end, on local disk",
    "against us: CPython calls and checks every event by itself; a table of them goes 50x faster",
)


def run(settings: Settings) -> Report:
    """Append event by event and flush, several rounds; profile one more for what bounds it."""
    texts = [f"{n:084d}" for n in range(1000)]
    given = [{"id": n, "at": n * 7, "text": texts[n % 1000]} for n in range(settings.rows)]
    rows, rates = [], []
    with settings.scratch() as scratch:
        for turn in range(settings.rounds):
            stream = segstore.create(scratch / f"{turn}", SCHEMA)
            with stream.appender() as appender:
                start = time.perf_counter()
                for event in given:
                    appender.append(event)
                taken = time.perf_counter() - start
                appender.flush()
                seconds = time.perf_counter() - start
                counters = appender.counters
            assert stream.refresh().tail == settings.rows
            rates.append(settings.rows / seconds)
            rows.append(
                {
                    "round": turn + 1,
                    "events/s": round(rates[-1]),
                    "us/event": round(seconds / settings.rows * 1e6, 2),
                    "of that in append": round(taken / settings.rows * 1e6, 2),
                    "writes": counters.channel_writes,
                    "bytes/write": round(counters.bytes_per_write),
                }
            )
        bound = _profile(segstore.create(scratch / "profiled", SCHEMA), given)
    median = sorted(rates)[len(rates) // 2]
    return Report(
        workload="appender_events",
        meaning=MEANING,
        setup=machine(settings.folder) | {"what bounds it (share of own time)": bound},
        rows=rows,
        ratios=[Ratio(f"events/s / {GOAL:,}", median / GOAL, 1)],
        flatters=FLATTERS,
    )


def _profile(stream: segstore.Stream, given: list[dict[str, object]]) -> str:
    profile = cProfile.Profile()
    with stream.appender() as appender:
        profile.enable()
        for event in given:
            appender.append(event)
        appender.flush()
        profile.disable()
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    total = sum(own for _, _, own, _, _ in stats.values())
    heavy = sorted(stats.items(), key=lambda item: -item[1][2])[:5]
    return ", ".join(f"{place[2]} {facts[2] / total:.0%}" for place, facts in heavy)


WORKLOADS = {"appender_events": Workload(MEANING, run, 100_000, 500)}
