"""What was found on a disk counted although its writer may have ended before it was synced.

A follower's segment, an object of an interrupted copy, and a commit that was shipped to a follower
could be lost with the power afterwards. Found by seed 6036 of the simulation, on a disk whose power
is cut.
"""

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.write.layout import Layout


@pytest.fixture
def synced(monkeypatch):
    """Return the set of all files and folders that are synced."""
    real, found = os.fsync, set()

    def fsync(descriptor):
        found.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


@pytest.fixture
def stream(tmp_path):
    return segstore.create(tmp_path / "s", like={"n": 1})


def stage(stream):
    """Stage a segment for a commit that has not begun."""
    batch = pa.record_batch({"n": [1, 2, 3]})
    job = stream.plan_write(batch.schema, layout=Layout(inline_bytes=0, segment_format="arrow"))
    task = job.open_task(0, "a")
    task.append(batch)
    return job, task.finish()


def segments_of(folder):
    return {path for path in (folder / "segments").rglob("*.arrow") if path.is_file()}


def test_segment_that_a_follower_holds_is_synced_before_it_counts(stream, synced, tmp_path):
    stream.followers.add(tmp_path / "f")
    job, staged = stage(stream)
    synced.clear()
    stream.commit(job, [staged])
    (segment,) = segments_of(tmp_path / "f")
    assert {segment, segment.parent} <= synced


def test_object_of_an_interrupted_copy_is_synced_before_it_counts(stream, synced, tmp_path):
    job, staged = stage(stream)
    stream.commit(job, [staged])
    target = tmp_path / "t"
    stream.copy_to(target, copy_id="c")
    shutil.rmtree(target / "log")
    synced.clear()
    stream.copy_to(target, copy_id="c")
    (segment,) = segments_of(target)
    assert {segment, segment.parent} <= synced


def test_commit_is_synced_before_it_is_shipped(stream, synced, tmp_path):
    """It may be another process's that ended between the link and its sync."""
    stream.followers.add(tmp_path / "f")
    synced.clear()
    stream.append([{"n": 1}])
    assert tmp_path / "s" / "log" / f"{stream.version:020d}" in synced
