"""What may be stored: no object of others goes, and after upkeep little stays but the stream."""

import re
from collections.abc import Collection
from random import Random
from typing import TYPE_CHECKING

from erasure_kit import decoded
from sim_ledger import Violation
from sim_store import Store, open_sim
from sim_world import Process

from segstore_ds.errors import NotFoundError
from segstore_ds.format.names import segment_object
from segstore_ds.retention.drop import run_drop
from segstore_ds.stream.opening import open as open_on

if TYPE_CHECKING:
    from simulation import Life

# Names of nobody's objects, in every folder of a stream.
ODD_NAMES = (
    "notes.txt",
    ".DS_Store",
    "data/part-0.parquet",
    "log/README",
    "log/00000000000000000007.bak",
    "segments/mine.parquet",
    "segments/2026/part-0.arrow",
    "status/.keep",
    "twins/mine.bak",
    "readers/app.lock",
)
MOST_BESIDE = 40  # objects of the log, and of the status or its twins, when upkeep has run
VALUE = re.compile(rb"mail-of-([\w.:-]+?)(?=mail-of-|[^\w.:-]|$)")
WAIT_S = 2.2 * 86_400


class Foreign:
    """Objects that others put into the folders of streams: they stay as they are."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.known: dict[str, bytes] = {}

    def plant(self, root: str, chance: Random) -> None:
        """Put an object into a folder, unless that is there."""
        full = f"{root}/{chance.choice(ODD_NAMES)}"
        if full not in self.store.objects:
            self.known[full] = chance.randbytes(9)
            self.store.plant(full, self.known[full])
            self.store.world.note(f"somebody puts {full}")

    def judge(self) -> None:
        """Hold them against what is stored; raises Violation."""
        for full, data in self.known.items():
            if self.store.objects.get(full, (b"", 0))[0] != data:
                raise Violation(f"an object of others is gone: {full}")


def judge_stored(life: "Life", process: Process, url: str, gone: Collection[str]) -> None:
    """Let upkeep run until nothing waits, and search what is stored; raises Violation.

    `gone` are events whose values nothing may hold any more.
    """
    stream = open_on(open_sim(life.store, process, url), clock=process.clock)
    for name in stream.pins:
        clone = f"{url}-{name}"
        try:
            run_drop(
                open_sim(life.store, process, clone), confirm=clone, clock=process.clock, client=""
            )
        except NotFoundError:
            stream.pins.release(name)
    for _ in range(3):
        life.world.sleep(WAIT_S)
        stream.maintain()
        stream.maintain(keep="1h", grace="24h")
    status, root = stream.refresh()._context.status, stream._log.root
    # The oldest part of the list goes whole: until then its segments stay, also below the head.
    runs = [run.columns for run in status.runs(root, root.listed_start, root.tail)]
    listed = {segment_object(run.path(row)) for run in runs for row in range(len(run))}
    for place in (url, *stream.followers):
        _judge_folder(life, place.removeprefix("memory:/"), listed, gone)


def _judge_folder(life: "Life", root: str, listed: set[str], gone: Collection[str]) -> None:
    store = life.store
    own = [
        full
        for full in store.objects
        if full.startswith(f"{root}/") and full not in life.foreign.known
    ]
    segments = [full for full in own if full.startswith(f"{root}/segments/")]
    kept = [full for full in segments if full.removeprefix(f"{root}/") not in listed]
    if kept:
        raise Violation(f"upkeep left segments that nothing lists: {kept[:5]}")
    for folder in ("status", "twins"):
        beside = [full for full in own if full.startswith((f"{root}/log/", f"{root}/{folder}/"))]
        if len(beside) > MOST_BESIDE:
            raise Violation(f"upkeep left {len(beside)} objects: {sorted(beside)}")
    for full in own if gone else ():
        for text in decoded(full.removeprefix(f"{root}/"), store.objects[full][0]):
            held = {match.decode() for match in VALUE.findall(text)} & {*gone}
            if held:
                raise Violation(f"{full} still holds the values of {sorted(held)[:3]}")
