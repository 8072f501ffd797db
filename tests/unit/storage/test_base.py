"""What goes by a storage's profile, what runs at the same time, and what a failed call keeps."""

import gc
import threading
import uuid
import weakref
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.errors import MissingObjectError
from segstore_ds.storage import open_storage
from segstore_ds.storage.base import FAR, at_once
from segstore_ds.stream.opening import create

EVENTS = pa.table({"n": [1]})


def stream_of(**fields: Any) -> segstore.Stream:
    storage = open_storage(f"memory://{uuid.uuid4().hex}")
    storage.profile = replace(FAR, **fields)
    return create(storage, EVENTS.schema, upkeep=None)


def requests_of_appends(**fields: Any) -> dict[str, int]:
    """Return how many requests of each kind the last three of four appends sent."""
    stream = stream_of(**fields)
    stream.append(EVENTS)
    stats = stream._log.storage.stats
    stats.reset()
    for _ in range(3):
        stream.append(EVENTS)
    return {verb: stats.requests.get(verb, 0) for verb in ("get", "put")}


def test_base_is_looked_at_again_once_it_is_not_trusted():
    trusting, looking = requests_of_appends(trust_s=60.0), requests_of_appends(trust_s=0.0)
    assert looking["get"] - trusting["get"] == 3


def test_hints_are_as_many_as_their_pace_allows():
    assert requests_of_appends(hint_every_s=3600.0)["put"] == 0
    assert requests_of_appends(hint_every_s=0.0)["put"] == 3


def test_far_stream_is_followed_without_a_look_at_its_base():
    streams = [stream_of(is_far=far) for far in (True, False)]
    sent = []
    for stream in streams:
        stream.append(EVENTS)
        stream._log.storage.stats.reset()
        stream._log.follow()
        sent.append(stream._log.storage.stats.requests.get("get", 0))
    assert sent == [1, 2]


def test_results_come_in_order_of_the_functions():
    barrier = threading.Barrier(3, timeout=300)  # passed only if all run at the same time

    def work(number: int) -> int:
        barrier.wait()
        return number

    assert at_once([lambda n=n: work(n) for n in range(3)]) == [0, 1, 2]


@pytest.mark.parametrize("failing", [{0}, {1}, {0, 2}, {1, 2}])
def test_all_have_ended_when_the_first_error_is_raised(failing):
    ended = []

    def work(number: int) -> None:
        ended.append(number)
        if number in failing:
            raise LookupError(number)

    with pytest.raises(LookupError, match=str(min(failing))):
        at_once([lambda n=n: work(n) for n in range(3)])
    assert sorted(ended) == [0, 1, 2]


def test_all_run_in_this_thread_where_none_can_start(monkeypatch):
    """At the end of a process, or under a limit: a commit that waits for followers goes on."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert at_once([threading.get_ident] * 3) == [threading.get_ident()] * 3


class _Held:
    """Something that a frame refers to."""


def test_failed_call_keeps_no_reference_to_its_callers() -> None:
    """An error in a reference cycle would keep its frames alive until a collection."""
    storage = open_storage(f"memory://{uuid.uuid4().hex}")

    def ask() -> "weakref.ref[_Held]":
        held = _Held()
        with pytest.raises(MissingObjectError):
            storage.get("log/1")
        return weakref.ref(held)

    gc.disable()
    try:
        assert ask()() is None
    finally:
        gc.enable()
