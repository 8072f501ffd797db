"""A month of small commits on a virtual clock: what it leaves stored, and which requests it sends.

The stream is in memory. Its requests are counted as S3 would: a page of a listing is one, an upload
in parts is one per part and two more.
"""

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa
from virtual_time import TimedStorage, VirtualTime

from benchmarks.datasets import EVENTS, events
from segstore_ds.retention.readers import NamedReader
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream import Stream, create_on, open_on

T = TypeVar("T")
DAY_S = 86_400
BATCH_ROWS = 10
SAMPLES_A_DAY = 8
PAGE = 1000  # names of one page of a listing
KINDS = {"get": "get", "get_range": "get", "info": "head", "create": "put", "put": "put"}
KINDS |= {"copy_from": "put", "delete": "delete"}
READERS = {"each minute": 60, "each hour": 3600}  # names, and seconds between reads


class CountedStorage(TimedStorage):
    """A storage on a virtual clock that counts requests by kind for whoever acts."""

    def __init__(self, inner: Storage, time: VirtualTime) -> None:
        super().__init__(inner, time)
        self.actor = ""
        self.requests: dict[str, Counter[str]] = {}
        self._parts: Counter[str] = Counter()

    def around(self, verb: str, path: str, work: Callable[[], T]) -> T:
        """Do the work and count what it takes."""
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


@dataclass(frozen=True, slots=True)
class Sample:
    """What is stored at a time, in days from the start; bytes, but for the objects."""

    day: float
    objects: int
    bytes: int
    log: int
    live: int
    dropped: int
    status: int
    log_objects: int

    @property
    def other_objects(self) -> int:
        """Objects that are no files of the log."""
        return self.objects - self.log_objects

    @property
    def overhead(self) -> int:
        """Bytes beside the events that the newest version lists."""
        return self.bytes - self.live


NOTHING = Sample(0, 0, 0, 0, 0, 0, 0, 0)


@dataclass(slots=True)
class Month:
    """What a simulation found: samples, and the requests of each day by who sent them."""

    commits: int
    every_s: int
    samples: list[Sample] = field(default_factory=list)
    days: list[dict[str, Counter[str]]] = field(default_factory=list)

    def at(self, day: float) -> Sample:
        """Return the first sample from a day on, or the last."""
        return next((s for s in self.samples if s.day >= day - 1e-6), self.samples[-1])

    def mean(self, start: float, end: float, field_name: str) -> float:
        """Return the mean of a field of the samples of the days ``(start, end]``."""
        found = [getattr(s, field_name) for s in self.samples if start < s.day <= end]
        return sum(found) / len(found)


def simulate(commits: int, every_s: int) -> Month:
    """Commit ten events at a time so far apart, with two readers and a nightly compaction."""
    time = VirtualTime()
    plain = open_storage(f"memory://{uuid.uuid4().hex}")
    storage = CountedStorage(plain, time)
    storage.actor = "append and upkeep"
    stream = create_on(storage, EVENTS, clock=time.clock)
    readers = [Following(storage, time, name, every) for name, every in READERS.items()]
    month = Month(commits, every_s)
    batches, elapsed, compacted = _batches(min(commits, DAY_S)), 0, 0
    sample_s = DAY_S // SAMPLES_A_DAY
    for _ in range(commits):
        time.advance(every_s)
        before, elapsed = elapsed, elapsed + every_s
        storage.actor = "append and upkeep"
        stream.append(next(batches))
        storage.actor = "two readers"
        for reader in readers:
            reader.follow_if_due(elapsed)
        if elapsed // DAY_S > before // DAY_S:
            storage.actor = "nightly compaction"
            stream.compact(start=compacted)
            compacted = stream.tail
            month.days.append(storage.requests)
            storage.requests = {}
        if elapsed // sample_s > before // sample_s:
            month.samples.append(_sample(plain, elapsed / DAY_S))
    if not month.samples:
        month.samples.append(_sample(plain, elapsed / DAY_S))
    if not month.days:
        month.days.append(storage.requests)
    storage.requests = {}  # what is asked below does not count
    assert stream.refresh().tail == commits * BATCH_ROWS
    assert all(reader.read == reader.position for reader in readers)
    stream.verify().check()
    for info in list(plain.list("")):
        plain.delete(info.path)  # a listing in memory passes by every object of the process
    return month


def _batches(different: int) -> Iterator[pa.RecordBatch]:
    """Yield so many different small batches, again and again."""
    made = events(0, different * BATCH_ROWS)
    while True:
        for start in range(0, made.num_rows, BATCH_ROWS):
            yield made.slice(start, BATCH_ROWS)


class Following:
    """A named reader that reads what is new every so often, and publishes how far it is."""

    def __init__(self, storage: Storage, time: VirtualTime, name: str, every_s: int) -> None:
        self._stream = open_on(storage, clock=time.clock)
        self._reader: NamedReader = self._stream.reader(name.replace(" ", "-"), owner="benchmark")
        self.every_s = every_s
        self.position = self.read = 0
        self._last_s = 0

    def follow_if_due(self, elapsed_s: int) -> None:
        """Read up to the tail if it is time."""
        if elapsed_s - self._last_s < self.every_s:
            return
        self._last_s = elapsed_s
        tail = self._stream.refresh().tail
        for batch in self._stream.read(self.position, tail):
            self.read += batch.num_rows
        self.position = tail
        self._reader.publish(tail)


def _sample(storage: Storage, day: float) -> Sample:
    stream: Stream = open_on(storage)
    folders, objects = Counter[str](), Counter[str]()
    for info in storage.list(""):
        folder = info.path.partition("/")[0]
        folders[folder] += info.size
        objects[folder] += 1
    listed = stream.info()["bytes"]
    inline = sum(entry.bytes for entry in stream.root.entries if entry.frame is not None)
    live = listed - inline
    return Sample(
        day=round(day, 4),
        objects=objects.total(),
        bytes=folders.total(),
        log=folders["log"],
        live=live,
        dropped=folders["segments"] - live,
        status=folders["status"],
        log_objects=objects["log"],
    )
