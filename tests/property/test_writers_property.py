"""Writers without end: none is refused for what moves to the blob, and none is forgotten."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_time import TimedStorage, VirtualTime

from segstore_ds.format.names import build_token
from segstore_ds.status.table import WRITERS
from segstore_ds.status.writers import WriterKey
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.append import AppendPlan
from segstore_ds.write.job import WriteJob
from segstore_ds.write.layout import Layout
from segstore_ds.write.request import WriteRequest

SCHEMA = pa.schema([("n", pa.int64())])
LIMITS = {"rows": 12, "hard": 24, "text_bytes": 400}

# Short names, names of nearly what all may take together, and pairs of the two, as queries have.
NAMES = st.lists(
    st.tuples(st.integers(1, 6) | st.integers(20, 390), st.sampled_from([0, 0, 30, 90])),
    min_size=1,
    max_size=40,
)


@contextmanager
def _limits(values: dict[str, int]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setattr(WRITERS, name, value)
        yield


def _keys(names: list[tuple[int, int]]) -> list[tuple[str, str]]:
    return [
        (f"{n}".ljust(length, "w"), f"checkpoint:{n}".ljust(claim, "c") if claim else "")
        for n, (length, claim) in enumerate(names)
    ]


def _commit(stream: Stream, key: WriterKey) -> int:
    token = build_token(stream._log.root.version, f"{stream._log.root.version:012x}")
    request = WriteRequest(stream.schema, Layout(), "", key)
    job = WriteJob(stream._log.storage, token, stream._log.clock.new_id(), request, request.schema)
    return stream._commits.appender.commit(AppendPlan.of(job, (), ())).version


def _last(stream: Stream, writer_id: str) -> tuple[int, int] | None:
    found = stream._context.status.writers.find(stream._log.root, writer_id)
    return found and (found.batch_id, found.version)


def _play(keys: list[tuple[str, str]], order: list[int]) -> int:
    """Commit a batch of each writer that the order names; return how many parts there were."""
    time = VirtualTime(1)
    storage = TimedStorage(open_storage(f"memory://{uuid.uuid4().hex}"), time)
    stream = create_on(storage, SCHEMA, clock=time.clock)
    known: dict[str, tuple[int, int]] = {}
    parts = set()
    for batch, number in enumerate(order):
        writer_id, claim = keys[number]
        version = _commit(stream, WriterKey(writer_id, batch, "q" * (number % 9), claim=claim))
        known |= {name: (batch, version) for name in (writer_id, claim) if name}
        fresh = {part.path for part in stream._log.root.writers_parts} - parts
        if fresh:
            parts |= fresh
            assert {name: _last(stream, name) for name in known} == known
    assert {name: _last(stream, name) for name in known} == known
    assert set(stream._context.status.writers.all(stream._log.root)) == set(known)
    return len(parts)


@given(NAMES, st.data())
@settings(max_examples=settings.default.max_examples * 3 // 5)
def test_no_writer_is_refused_and_no_last_batch_is_forgotten(
    names: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Whatever the lengths of their names, and in whatever order they come and come back."""
    keys = _keys(names)
    order = data.draw(st.lists(st.integers(0, len(keys) - 1), max_size=80))
    with _limits(LIMITS):
        _play(keys, order)


@pytest.mark.parametrize("seed", range(4))
def test_many_queries_of_mixed_names_go_on_for_ever(seed: int) -> None:
    """A spill keeps few long names or many short ones; joined parts lose older rows of a name."""
    chance = Random(seed)
    keys = _keys([(chance.choice([2, 3, 60, 200]), chance.choice([0, 100])) for _ in range(60)])
    # The long ones first, then the short ones: what is kept inline then no longer stands twice.
    order = sorted(range(60), key=lambda number: -len(keys[number][0]))
    order += chance.choices(range(60), k=340)
    with _limits({"rows": 64, "hard": 128, "text_bytes": 1_500}):
        assert _play(keys, order) > 5
