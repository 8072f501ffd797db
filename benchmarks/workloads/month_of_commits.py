"""Thirty days of small commits: what is stored, which requests are sent, and what that costs."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from object_servers import ServerUnavailableError

from benchmarks import delta_months
from benchmarks.commit_months import (
    BATCH_ROWS,
    DAY_S,
    NOTHING,
    READERS,
    Month,
    Sample,
    simulate,
)
from benchmarks.delta_months import DeltaRun, kept_text, project, run_delta
from benchmarks.graph import Panel, draw
from benchmarks.prices import PRICE_LIST, price_requests, price_storage
from benchmarks.report import Ratio, Report, machine
from benchmarks.workload import Settings, Workload

MEANING = (
    "a month of commits on a virtual clock: objects, bytes, requests, USD (rows: commits, 1/s)"
)
DAYS = 30
GRACE_DAYS = 7
SPARSE = 4  # a month that is simulated whole has a quarter of the commits
PRICED = ("put", "get", "list", "head")
LOGS_KEPT = (delta_months.LOG_KEPT_DAYS, 1)
DELTA_SHARE = 48  # of the dense commits delta-rs has so many fewer
MB = 1e6
FLATTERS = (
    (
        "a month at 1/s is projected: requests are those of the last whole day that was simulated, "
        "stored bytes are linear from it (a month of --rows 2592000 is simulated whole)"
    ),
    (
        "delta-rs: one hour is real, a month is its rates; it has no readers here, and a list of "
        "its log, which has millions of files then, counts as one page: both flatters delta-rs"
    ),
    (
        "against delta-rs: its default checkpoint every 100 commits is for larger commits; Spark's "
        "writer and other settings would make fewer or smaller ones"
    ),
    "one writer that never loses a race, and a store that never fails",
)


def run(settings: Settings) -> Report:
    """Simulate a dense piece of the month and a sparse whole one; run delta-rs for a while."""
    dense = simulate(settings.rows, 1)
    commits = max(settings.rows // SPARSE, 1)
    sparse = simulate(commits, DAYS * DAY_S // commits)
    found: DeltaRun | None = None
    with settings.scratch() as scratch, suppress(ServerUnavailableError):
        found = run_delta(scratch, settings.rows // DELTA_SHARE)
    ours = _month_row(dense)
    theirs = {kept_text(kept): _delta_row(found, kept) for kept in LOGS_KEPT if found}
    return Report(
        workload="month_of_commits",
        meaning=MEANING,
        setup=_setup(settings, dense, sparse, found),
        rows=[*_segstore_rows(dense, sparse, ours), *theirs.values()],
        ratios=[
            *_bounds(sparse),
            Ratio("1/s: priced requests per commit", _priced(ours) / DAYS / DAY_S),
            *(
                Ratio(f"USD of the month: segstore / delta-rs, log kept {kept}", _usd(ours, row))
                for kept, row in theirs.items()
            ),
        ],
        flatters=FLATTERS,
        raw={"dense": _raw(dense), "sparse": _raw(sparse), "delta": str(found)},
        graph=_graph(dense, sparse),
    )


def _setup(
    settings: Settings, dense: Month, sparse: Month, found: DeltaRun | None
) -> dict[str, Any]:
    return machine(settings.folder) | {
        "commits": f"{BATCH_ROWS} events each, inline where they are small; upkeep by default",
        "readers": f"two with published positions, that read {' and '.join(READERS)}",
        "compaction": "every 24 hours, of what came since the last one",
        "dense": f"{dense.commits:,} commits, one a second: {dense.commits / DAY_S:.2f} days",
        "sparse": f"{sparse.commits:,} commits, one every {sparse.every_s} s: {DAYS} days",
        "prices": PRICE_LIST,
        "delta-rs": "no server could be fetched" if found is None else _describe(found),
    }


def _segstore_rows(dense: Month, sparse: Month, ours: dict[str, Any]) -> list[dict[str, Any]]:
    name = f"1 every {sparse.every_s} s"
    bill = _bill(_sum(sparse), _mean_bytes(sparse))
    return [
        *(_row("1/s, measured", sample) for sample in _whole_days(dense)),
        *(
            {"what": f"1/s, requests of the last day: {actor}", **counts}
            for actor, counts in sorted(dense.days[-1].items())
        ),
        ours,
        *(_row(f"{name}, measured", sparse.at(day)) for day in (7.5, 15, 22.5, 30)),
        {"what": f"{name}, the month", "day": DAYS, **bill},
    ]


def _month_row(dense: Month) -> dict[str, Any]:
    month = {kind: n * DAYS for kind, n in _per_day(dense).items()}
    stored = _project_stored(dense)
    return {
        "what": "1/s, a month projected",
        "day": DAYS,
        "objects": stored["objects"],
        "MB": round(stored["bytes"] / MB),
        **_bill(month, stored["mean bytes"]),
    }


def _delta_row(found: DeltaRun, log_kept_days: int) -> dict[str, Any]:
    month = project(found, DAYS, log_kept_days=log_kept_days)
    return {
        "what": f"delta-rs 1/s, projected, log kept {kept_text(log_kept_days)}",
        "day": DAYS,
        "objects": month.objects,
        "MB": round(month.bytes / MB),
        **_bill(month.requests, month.mean_bytes),
    }


def _bounds(sparse: Month) -> list[Ratio]:
    """Return the last week over the week before, when all graces have passed once."""
    name = f"1 every {sparse.every_s} s, days 23 to 30 / days 16 to 23"
    return [
        Ratio(
            f"{name}: {what}",
            sparse.mean(23, 30, field) / sparse.mean(16, 23, field),
            1.1,
            most=True,
        )
        for what, field in (("objects", "objects"), ("bytes beside the events", "overhead"))
    ]


def _priced(row: Mapping[str, Any]) -> int:
    return sum(row[kind] for kind in PRICED)


def _usd(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    return float(ours["USD"] / theirs["USD"])


def _describe(found: DeltaRun) -> str:
    per_commit = {kind: round(n / found.commits, 2) for kind, n in found.appends.items()}
    return (
        f"deltalake {version('deltalake')}, {found.commits:,} real commits on MinIO, counted by "
        f"a proxy; requests per commit {per_commit}, of one optimize {dict(found.optimize)}, of "
        f"cleanup_metadata and vacuum {dict(found.cleanup)}; bytes: data file "
        f"{found.file_bytes:.0f}, commit {found.commit_bytes:.0f}, checkpoint "
        f"{found.checkpoint_bytes:.0f} per file and {found.tombstone_bytes:.0f} per dropped file"
    )


def _whole_days(month: Month) -> list[Sample]:
    days = month.commits * month.every_s // DAY_S
    return [month.at(day) for day in range(1, days + 1)] or [month.samples[-1]]


def _row(what: str, sample: Sample) -> dict[str, Any]:
    return {
        "what": what,
        "day": round(sample.day, 2),
        "objects": sample.objects,
        "MB": round(sample.bytes / MB, 1),
        "MB log": round(sample.log / MB, 1),
        "MB events": round(sample.live / MB, 1),
        "MB dropped": round(sample.dropped / MB, 1),
        "MB status": round(sample.status / MB, 1),
    }


def _bill(requests: Mapping[str, float], mean_bytes: float) -> dict[str, Any]:
    asked, kept = price_requests(requests), price_storage(mean_bytes)
    return {
        **{kind: round(requests.get(kind, 0)) for kind in (*PRICED, "delete")},
        "USD requests": round(asked, 2),
        "USD storage": round(kept, 2),
        "USD": round(asked + kept, 2),
    }


def _per_day(month: Month) -> dict[str, int]:
    """Return the requests of the last whole day, or what they would be at the rate so far."""
    share = max(DAY_S / (month.commits * month.every_s), 1)
    found = sum(month.days[-1].values(), Counter[str]())
    return {kind: round(n * share) for kind, n in found.items()}


def _sum(month: Month) -> dict[str, int]:
    return dict(sum((sum(day.values(), Counter()) for day in month.days), Counter()))


def _mean_bytes(month: Month) -> float:
    return sum(sample.bytes for sample in month.samples) / len(month.samples)


def _project_stored(month: Month) -> dict[str, Any]:
    """Return what is stored after 30 days at the rates of the last day that was simulated.

    The log does not grow any more. The events and the status grow as on that day. What was dropped
    goes after a week; before, a day of it was added each day. A whole month needs no projection.
    """
    last = month.samples[-1]
    if last.day >= DAYS:
        return {"objects": last.objects, "bytes": last.bytes, "mean bytes": _mean_bytes(month)}
    before = month.at(last.day - 1) if last.day > 1 else NOTHING
    span = last.day - before.day
    rates = {
        name: (getattr(last, name) - getattr(before, name)) / span
        for name in ("live", "dropped", "status", "other_objects")
    }

    def at(day: float) -> float:
        growing = rates["live"] + rates["status"]
        return last.log + growing * day + rates["dropped"] * min(day, GRACE_DAYS)

    objects = last.objects + rates["other_objects"] * max(GRACE_DAYS - last.day, 0)
    mean = sum(at(day) for day in range(1, DAYS + 1)) / DAYS
    return {"objects": round(objects), "bytes": at(DAYS), "mean bytes": mean}


def _raw(month: Month) -> dict[str, Any]:
    return {
        "commits": month.commits,
        "every_s": month.every_s,
        "samples": [asdict(sample) for sample in month.samples],
        "requests by day": [{who: dict(n) for who, n in day.items()} for day in month.days],
    }


def _graph(dense: Month, sparse: Month) -> str:
    panels = []
    for month in (sparse, dense):
        days = [sample.day for sample in month.samples]
        title = f"one commit every {month.every_s} s" if month.every_s > 1 else "a commit a second"
        panels += [
            Panel(f"{title}: objects, by day", days, {"": [s.objects for s in month.samples]}),
            Panel(
                f"{title}: MB stored, by day",
                days,
                {
                    "all": [s.bytes / MB for s in month.samples],
                    "events": [s.live / MB for s in month.samples],
                    "log": [s.log / MB for s in month.samples],
                    "dropped, in their grace": [s.dropped / MB for s in month.samples],
                    "status": [s.status / MB for s in month.samples],
                },
            ),
        ]
    return draw(panels)


WORKLOADS = {"month_of_commits": Workload(MEANING, run, DAY_S, 600)}
