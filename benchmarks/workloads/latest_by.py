"""A table of the newest event of each key, kept up to date, beside Delta's MERGE."""

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import segstore_ds as segstore
from benchmarks.datasets import EVENTS, events
from benchmarks.report import Found, Ratio
from benchmarks.rival_stores import installed
from benchmarks.workload import Settings, Timing, folder_bytes, timed, workload
from segstore_ds.read.latest import newest_by_key

KEY = ["name"]
PIECE = 1 << 20
NEW = (10**2, 10**4, 10**5)  # events of a round
OURS, RIVAL = "publish(latest_by=)", "delta-rs merge"


@workload(
    "keys are 10^5 names, a few of them frequent; new events are on all of them",
    "delta-rs is given the newest of the new events by key; we read them from the stream",
    "appending to the stream is not counted, as MERGE's source would be kept somewhere as well",
    "against us: a round syncs segment, commit, folder and table to disk; delta-rs syncs nothing",
    "rounds of one size follow each other, ours and MERGE in turns; on a local disk",
    rows=10**7,
    tiny_rows=10**3,
)
def latest_by(settings: Settings) -> Found:
    """Bring a table of newest events up to date from new ones, beside Delta's MERGE."""
    with settings.scratch() as scratch:
        stream = segstore.create(scratch / "stream", EVENTS, upkeep=None)
        for start in range(0, settings.rows, PIECE):
            stream.append(pa.table(events(start, min(PIECE, settings.rows - start))))
        first = timed(lambda: stream.publish("delta", latest_by=KEY))
        merge = _merging(scratch / "rival", stream) if "delta-rs" in installed() else None
        rows: list[dict[str, Any]] = []
        ratios = []
        for new in NEW[: 1 if settings.tiny else None]:
            timings = {OURS: Timing()} | ({RIVAL: Timing()} if merge else {})
            for _ in range(settings.rounds):
                stream.append(pa.table(events(stream.tail, new)))
                fresh = newest_by_key(stream.read(stream.tail - new), EVENTS, KEY)
                timings[OURS].time(lambda: stream.publish("delta", latest_by=KEY))
                if merge:
                    timings[RIVAL].time(partial(merge, fresh))
            rows += [{"new events": new, **timing.row(name)} for name, timing in timings.items()]
            if merge:
                ours, rival = timings[OURS], timings[RIVAL]
                what = f"{new:,} new events: MERGE / ours"
                ratios.append(Ratio(what, rival.median / ours.median, 1))
                ratios.append(Ratio(f"{what}, CPU", rival.cpu / ours.cpu, 1))
        return Found(
            rows,
            ratios,
            setup={"first publication s": round(first, 1), "bytes": folder_bytes(scratch)},
        )


def _merging(folder: Path, stream: segstore.Stream) -> Any:
    """Make a table of the newest events, and return what merges newer ones into it."""
    from deltalake import DeltaTable, write_deltalake

    write_deltalake(folder, stream.latest(KEY).read_all())

    def merge(data: pa.Table) -> None:
        merging = DeltaTable(folder).merge(data, "t.name = s.name", "s", "t")
        merging.when_matched_update_all().when_not_matched_insert_all().execute()

    return merge
