"""What goes by a storage's profile: each field changes one thing, whatever the storage is."""

import os
import uuid
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from wrapped_storage import WrappedStorage

import segstore_ds as segstore
from segstore_ds.read import segments
from segstore_ds.read.scan import read_threads
from segstore_ds.storage import open_storage
from segstore_ds.storage.base import FAR, NEAR
from segstore_ds.stream.opening import create

EVENTS = pa.table({"n": range(1000), "m": range(1000)})
LAYOUT = segstore.Layout(frame_rows=10, inline_bytes=0, segment_format="arrow")


@pytest.mark.parametrize(("url", "profile"), [("/s", NEAR), ("memory://s", FAR)])
def test_storage_has_the_profile_of_its_kind(url, profile):
    storage = open_storage(url)
    assert storage.profile == profile
    assert WrappedStorage(storage).profile == profile


def stream_of(**fields: Any) -> segstore.Stream:
    storage = open_storage(f"memory://{uuid.uuid4().hex}")
    storage.profile = replace(FAR, **fields)
    return create(storage, EVENTS.schema, upkeep=None)


def requests_of_appends(**fields: Any) -> dict[str, int]:
    """Return how many requests of each kind the last three of four appends sent."""
    stream = stream_of(**fields)
    stream.append(EVENTS[:1])
    stats = stream._log.storage.stats
    stats.reset()
    for _ in range(3):
        stream.append(EVENTS[:1])
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
        stream.append(EVENTS[:1])
        stream._log.storage.stats.reset()
        stream._log.follow()
        sent.append(stream._log.storage.stats.requests.get("get", 0))
    assert sent == [1, 2]


def test_threads_of_a_near_read_are_at_most_the_cores(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    near, far = (stream_of(is_far=far, read_threads=5).scan().reading for far in (False, True))
    assert (read_threads(near), read_threads(far)) == (2, 5)


def test_fetches_are_fewer_where_their_factor_is_large(monkeypatch):
    monkeypatch.setattr(segments, "READ_BYTES", 1000)
    monkeypatch.setattr(segments, "WHOLE_OBJECT_BYTES", 0)
    monkeypatch.setattr(segments, "SMALL_FETCHES", 1)
    sent = []
    for factor in (1, 4):
        stream = stream_of(fetch_factor=factor)
        stream.append(EVENTS, layout=LAYOUT)
        assert stream.scan().to_arrow() == EVENTS
        sent.append(stream._log.storage.stats.requests["get_range"])
    assert sent[1] < sent[0] / 2
