"""Thirty days of small commits on a virtual clock: what stays stored, which requests are sent.

The stream is in memory. Its requests are counted as S3 would: a page of a listing is one, an upload
in parts is one per part and two more.
"""

import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from virtual_time import TimedStorage, VirtualTime

from benchmarks.datasets import EVENTS, events
from benchmarks.report import Found, Ratio
from benchmarks.workload import Settings, workload
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on

T = TypeVar("T")
DAYS, DAY_S = 30, 86_400
BATCH_ROWS = 10
SAMPLES_A_DAY = 2
PAGE = 1000  # names of one page of a listing
KINDS = {"get": "get", "get_range": "get", "info": "head", "create": "put", "put": "put"}
KINDS |= {"copy_from": "put", "delete": "delete"}
READERS = {"each-minute": 60, "each-hour": 3600}  # names, and seconds between reads
OURS, READING, NIGHTLY = "append and upkeep", "two readers", "nightly compaction"
Row = dict[str, Any]


class _Counted(TimedStorage):
    """A storage on a virtual clock that counts requests by kind for whoever acts."""

    def __init__(self, inner: Storage, time: VirtualTime) -> None:
        super().__init__(inner, time)
        self.actor = ""
        self.requests: dict[str, Counter[str]] = {}
        self._parts: Counter[str] = Counter()

    def around(self, verb: str, path: str, work: Callable[[], T]) -> T:
        done = super().around(verb, path, work)
        counts = self.requests.setdefault(self.actor, Counter())
        if verb == "list":
            names = done if isinstance(done, list | tuple) else ()
            counts["list"] += max(1, -(-len(names) // PAGE))
        elif verb == "write":
            self._parts[path] += 1
        elif verb == "commit":
            parts = self._parts.pop(path, 1)
            counts["put"] += 1 if parts == 1 else parts + 2
        elif verb in KINDS:
            counts[KINDS[verb]] += 1
        if verb == "delete":
            self.made_us.pop(path, None)  # a month of names would not fit
        return done


@workload(
    "one writer that never loses a race, and a store that never fails",
    "a month at one a second would be the day's requests, thirty times: it is not simulated",
    rows=DAY_S,
    tiny_rows=200,
)
def month_of_commits(settings: Settings) -> Found:
    """Commit ten events each second (rows: commits), and each two minutes for thirty days.

    Two readers publish their positions, one each minute and one each hour; what came since the last
    night is compacted each night.
    """
    commits = max(settings.rows // 4, 1)
    dense = _simulate(settings.rows, 1)
    sparse = _simulate(commits, DAYS * DAY_S // commits)
    weeks = [[row for row in sparse if end - 7 < row.get("day", 0) <= end] for end in (23, 30)]
    ratios = [
        Ratio(
            f"days 23 to 30 / days 16 to 23: {what}", _mean(weeks[1], what) / _mean(weeks[0], what)
        )
        for what in ("objects", "MB beside the events")
    ]
    puts = sum(row.get("put", 0) for row in dense) / settings.rows
    return Found([*dense, *sparse], [*ratios, Ratio("puts of a commit, one a second", puts)])


def _mean(rows: list[Row], what: str) -> float:
    return float(sum(row[what] for row in rows) / len(rows))


def _simulate(commits: int, every_s: int) -> list[Row]:
    """Return what is stored after each half day, and the requests by who sent them."""
    time = VirtualTime()
    plain = open_storage(f"memory://{uuid.uuid4().hex}")
    storage = _Counted(plain, time)
    storage.actor = OURS
    stream = create_on(storage, EVENTS, clock=time.clock)
    reading = {name: open_on(storage, clock=time.clock) for name in READERS}
    readers = {name: own.readers.register(name, owner="benchmark") for name, own in reading.items()}
    read = dict.fromkeys(READERS, 0)
    made = events(0, min(commits, DAY_S) * BATCH_ROWS)
    rows: list[Row] = []
    compacted, step = 0, DAY_S // SAMPLES_A_DAY
    what = {"one commit every s": every_s}
    for number in range(commits):
        before, elapsed = number * every_s, (number + 1) * every_s
        time.advance(every_s)
        storage.actor = OURS
        stream.append(made.slice(number * BATCH_ROWS % made.num_rows, BATCH_ROWS))
        storage.actor = READING
        for name, pause_s in READERS.items():
            if elapsed // pause_s > before // pause_s:
                tail = reading[name].refresh().tail
                found = reading[name].read(read[name], tail).read_all().num_rows
                assert found == tail - read[name]
                readers[name].publish(tail)
                read[name] = tail
        if elapsed // DAY_S > before // DAY_S:
            storage.actor = NIGHTLY
            stream.compact(start=compacted)
            compacted = stream.tail
        if elapsed // step > before // step or number == commits - 1:
            rows.append(what | {"day": round(elapsed / DAY_S, 2)} | _stored(plain))
    rows += [what | {"requests of": actor, **n} for actor, n in storage.requests.items()]
    assert stream.refresh().tail == commits * BATCH_ROWS
    stream.verify().check()
    for info in list(plain.list("")):
        plain.delete(info.path)  # a listing in memory passes by every object of the process
    return rows


def _stored(storage: Storage) -> Row:
    stream = open_on(storage)
    folders, objects = Counter[str](), 0
    for info in storage.list(""):
        folders[info.path.partition("/")[0]] += info.size
        objects += 1
    inline = sum(entry.bytes for entry in stream._log.root.entries if entry.frame is not None)
    live = stream.info()["bytes"] - inline
    found = {
        "": folders.total(),
        " beside the events": folders.total() - live,
        " log": folders["log"],
        " dropped": folders["segments"] - live,
        " status": folders["status"] + folders["twins"],
        " events": live,
    }
    return {"objects": objects, **{f"MB{name}": round(n / 1e6, 2) for name, n in found.items()}}
