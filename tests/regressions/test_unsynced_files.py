"""What counted, or proved something, on a disk although power loss could still take it.

What was found on a disk counted although its writer may have ended before it was synced. Found by
lives of the simulation, on a disk whose power is cut (seeds 5075 and 6036, and others).
"""

import errno
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.write.layout import Layout

STAGED = Layout(inline_bytes=0, segment_format="arrow")


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


def segment_of(folder):
    (segment,) = (path for path in (folder / "segments").rglob("*.arrow") if path.is_file())
    return segment


def test_folder_is_synced_before_a_commit_whose_link_answered_an_error_counts(
    stream, synced, monkeypatch, tmp_path
):
    """The answer to its link was lost."""
    real = os.link

    def link(source, target):
        monkeypatch.setattr(os, "link", real)
        real(source, target)
        synced.clear()
        raise OSError(errno.ESTALE, "the answer was lost")

    monkeypatch.setattr(os, "link", link)
    stream.append([{"n": 1}])
    assert tmp_path / "s" / "log" in synced


def test_segment_that_a_follower_holds_is_synced_before_it_counts(stream, synced, tmp_path):
    """So is the commit, before it is shipped: it may be another process's that ended."""
    stream.followers.add(tmp_path / "f")
    job = stream.plan_write(stream.schema, layout=STAGED)
    staged = job.stage(0, "a", pa.table({"n": [1, 2, 3]}).to_batches())
    synced.clear()
    stream.commit(job, [staged])
    segment = segment_of(tmp_path / "f")
    assert {segment, segment.parent} <= synced
    assert tmp_path / "s" / "log" / f"{stream.version:020d}" in synced


def test_object_of_an_interrupted_copy_is_synced_before_it_counts(stream, synced, tmp_path):
    stream.append([{"n": 1}], layout=STAGED)
    target = tmp_path / "t"
    stream.copy_to(target, copy_id="c")
    shutil.rmtree(target / "log")
    synced.clear()
    stream.copy_to(target, copy_id="c")
    segment = segment_of(target)
    assert {segment, segment.parent} <= synced


def test_commit_that_was_never_synced_may_be_gone_after_the_store_was_asked_for_its_time(
    stream, tmp_path
):
    """Upkeep of another process wrote the hint of that commit to learn the store's time.

    The hint proved the commit, so the stream did not open.
    """
    stream.append([{"n": 1}])
    hint = tmp_path / "s" / "log" / "_latest"
    acknowledged = hint.read_bytes()
    stream.append([{"n": 2}])
    hint.write_bytes(acknowledged)  # the writer ends before its sync, and so before its hint
    segstore.open(tmp_path / "s").maintain()
    (tmp_path / "s" / "log" / f"{stream.version:020d}").unlink()  # by a power loss
    assert segstore.open(tmp_path / "s").tail == 1


def test_hint_of_an_acknowledged_commit_still_proves_it(stream, tmp_path):
    """Asking for the store's time keeps the proof."""
    stream.append([{"n": 1}])
    hint = (tmp_path / "s" / "log" / "_latest").read_bytes()
    stream._log.store_now_us()
    assert (tmp_path / "s" / "log" / "_latest").read_bytes() == hint


def test_commit_is_synced_before_it_is_shipped(stream, synced, tmp_path):
    """It may be another process's that ended between the link and its sync."""
    stream.followers.add(tmp_path / "f")
    synced.clear()
    stream.append([{"n": 1}])
    assert tmp_path / "s" / "log" / f"{stream.version:020d}" in synced
