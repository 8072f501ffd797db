"""One handle, many threads: whatever they do at once, each gets what it would get alone."""

import itertools
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.errors import ConflictError
from segstore_ds.format.root import Root
from segstore_ds.log.clock import BRIEF_CLOCK
from segstore_ds.log.context import new_context
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.retention.upkeep import AutoUpkeep, Round
from segstore_ds.status import store, table
from segstore_ds.status.store import RowCache
from segstore_ds.stream import commits
from segstore_ds.stream.commits import Commits

SCHEMA = pa.schema([("n", pa.int64())])
SECONDS = 5.0


@pytest.fixture
def often() -> Iterator[None]:
    """Let the interpreter change threads every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(*works: Callable[[], object], until: Callable[[], bool] | None = None) -> None:
    """Run each in a thread of its own, over and over `until` that holds; raise the first error."""
    errors: list[BaseException] = []
    begin = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> None:
        try:
            begin.wait()
            while not errors:
                work()
                if until is None or until():
                    return
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.usefixtures("often")
def test_threads_share_the_cache_of_status_objects() -> None:
    """None of them meets it while another one drops the oldest values."""
    cache = RowCache()

    def use(first: int) -> None:
        for n in range(first, first + 3000):
            cache.keep(f"{n % 97}", store._CACHED_ROWS // 3, n)
            cache.get(f"{(n + 1) % 97}")

    at_once(*(lambda first=first: use(first) for first in range(0, 80_000, 10_000)))
    cache.keep("last", 1, "value")
    assert cache.get("last") == "value"
    assert len(cache._values) < 5


@pytest.mark.usefixtures("often")
def test_threads_share_the_memory_of_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest job is forgotten by one of them only."""
    monkeypatch.setattr(commits, "_JOBS_REMEMBERED", 3)
    stream = segstore.create(f"memory://{uuid.uuid4().hex}", SCHEMA, upkeep=None)
    shared, job = Commits(stream._context), stream.plan_write(SCHEMA)
    jobs = [stream.plan_write(SCHEMA) for _ in range(50)]
    assert job.transaction not in {other.transaction for other in jobs}

    def remember() -> None:
        for other in jobs * 2000:
            shared._remember(other, "tried")

    at_once(*[remember] * 8)
    shared._remember(job, "ended")
    assert shared._jobs[job.transaction] == "ended"
    assert len(shared._jobs) < 12


@pytest.mark.slow
def test_threads_share_a_handle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends, reads, upkeep and the rest: no alarm, nothing lost, nothing twice, never back."""
    for module, name, value in (
        (store, "_CACHED_OBJECTS", 4),
        (commits, "_JOBS_REMEMBERED", 4),
        (table.SEGMENTS, "rows", 3),
        (table.SEGMENTS, "fan_in", 2),
        (table.RETIRED, "rows", 3),
    ):
        monkeypatch.setattr(module, name, value)
    stream = segstore.create(tmp_path / "stream", SCHEMA)
    stream.followers.add(str(tmp_path / "follower"))
    numbers, acknowledged = itertools.count(), dict[int, int]()
    staged = segstore.Layout(inline_bytes=0)

    def append(layout: segstore.Layout | None = None) -> None:
        number = next(numbers)
        acknowledged[stream.append([{"n": number}], layout=layout).start] = number

    def refresh() -> None:
        known = stream.version
        assert stream.refresh().version >= known

    def read() -> None:
        tail = stream.tail
        found = stream.read(offset_column="offset").read_all()
        assert found["offset"].to_pylist() == list(range(found.num_rows))
        assert found.num_rows >= tail

    def look() -> None:
        assert stream.history().read_all().num_rows > 0
        assert stream.scan(filters=[["n", ">=", 0]]).count() >= 0
        stream.metrics()
        stream.position("tail", replicated=True)

    def care() -> None:
        with suppress(ConflictError):  # the other one compacts the same segments
            stream.compact()
        stream.tags.set(f"t{next(numbers)}", move=True)
        stream.readers.register("etl", owner="a").publish(stream.tail)

    threads = [append, append, lambda: append(staged), refresh, read, look, care, care]
    end_s = time.monotonic() + SECONDS
    at_once(*threads, until=lambda: time.monotonic() > end_s)
    found = segstore.open(tmp_path / "stream")
    assert found.verify().ok
    events = found.read(offset_column="offset").read_all()
    kept = dict(zip(events["offset"].to_pylist(), events["n"].to_pylist(), strict=True))
    assert kept == acknowledged
    assert kept
    assert segstore.open(str(tmp_path / "follower")).tail == found.tail


@pytest.mark.usefixtures("often")
def test_threads_start_one_round_of_upkeep() -> None:
    """The commits of several threads find it due at once; one of them starts it."""
    stream = segstore.create(f"memory://{uuid.uuid4().hex}", SCHEMA, upkeep=None)
    log = StreamLog(stream._log.storage, clock=BRIEF_CLOCK)
    log.adopt(stream._log.root)
    context = new_context(log)
    for _ in range(20):
        begun: list[object] = []

        def may_be_due(_root: Root) -> bool:
            time.sleep(0)  # lets other threads run
            return True

        rounds = (Round("work", may_be_due, lambda own, _, begun=begun: begun.append(own)),)
        at_once(*[AutoUpkeep(context, rounds).start_if_due] * 8)
        assert len(begun) == 1
