"""Reads on in the log while another writer's commit is awaited; decides nothing."""

from typing import Any

from segstore_ds.log.clock import Clock
from segstore_ds.log.metadata_log import MetadataLog
from segstore_ds.log.turns import Look

READS = 64  # of one wait
LOOK_AHEAD = 24  # reads of a loser


def await_version(files: MetadataLog[Any], clock: Clock, look: Look) -> tuple[bytes | None, bool]:
    """Read a version until it is there; return its file, and whether it was put a moment ago."""
    clock.sleep(max(look.from_s - clock.boot_s(), 0.0))
    for reads in range(READS):
        asked_s = clock.boot_s()
        data = files.read(look.version)
        now_s = clock.boot_s()
        if data is not None or now_s >= look.until_s:
            return data, reads > 0
        clock.sleep(max(asked_s + look.pause_s - now_s, 0.0))
    return None, True


def read_ahead(
    files: MetadataLog[Any], clock: Clock, version: int, data: bytes | None, until_s: float
) -> tuple[int, bytes | None]:
    """Return the newest version from one that was read on, or one that is near it.

    Until `until_s` it also waits for one that is just being put. If that is negative, it takes no
    time to make sure that the version is the newest.
    """
    # Others commit meanwhile: one by one would hardly catch up.
    stride, hits, missed = 2, 0, False
    for _ in range(LOOK_AHEAD):
        following = files.read(version + stride)
        if following is not None:
            version, data = version + stride, following
            if missed or (stride == 1 and until_s < 0):
                break
            hits += 1
            stride *= 2 if stride > 1 < hits else 1
        elif stride > 1:
            stride, hits = stride // 2, 0
        elif clock.boot_s() >= until_s:
            break
        else:
            missed = True
    return version, data
