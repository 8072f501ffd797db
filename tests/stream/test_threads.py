"""One handle, many threads: whatever they do at once, each gets what it would get alone."""

import itertools
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.errors import ConflictError
from segstore_ds.status import store, table
from segstore_ds.stream import commits

SCHEMA = pa.schema([("n", pa.int64())])
SECONDS = 5.0


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
