"""A commit was acknowledged whose folder was never synced: the answer to its link was lost.

Found by seed 5075 of the simulation, on a disk whose power is cut.
"""

import errno
import os
from pathlib import Path

import segstore_ds as segstore


def test_folder_is_synced_before_a_commit_whose_link_answered_an_error_counts(
    tmp_path, monkeypatch
):
    stream = segstore.create(tmp_path / "s", like={"n": 1})
    real_link, real_sync, synced = os.link, os.fsync, []

    def link(source, target):
        monkeypatch.setattr(os, "link", real_link)
        real_link(source, target)
        synced.clear()
        raise OSError(errno.ESTALE, "the answer was lost")

    def fsync(descriptor):
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real_sync(descriptor)

    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(os, "fsync", fsync)
    stream.append([{"n": 1}])
    assert tmp_path / "s" / "log" in synced
