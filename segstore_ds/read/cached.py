"""The read cache of this process: what its scans share, and with whom.

A key is the stream's id, the location with a digest of the credentials, an object's name with the
checksum of its footer, and a range of its bytes. Names are never reused, and the committed footer
holds the checksums of all frames: so a key stands for the same bytes forever, also if a stream is
dropped and created again, salvaged or repaired. Spark reuses its workers for the jobs of several
users: a scan finds only what was read with the same credentials.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from segstore_ds.cache.read_cache import Loaded, ReadCache, ReadCounters
from segstore_ds.format.root import SegmentEntry
from segstore_ds.storage import Storage

Span = tuple[int, int]
_Key = tuple[tuple[tuple[str, str], str, int], Span]

PROCESS_CACHE: ReadCache[_Key] = ReadCache()
os.register_at_fork(after_in_child=PROCESS_CACHE.reset)


def read_cache_counters() -> ReadCounters:
    """Return what the read cache of this process did so far, and what it holds now.

    Examples:
        >>> segstore.read_cache_counters().misses
        0
    """
    return PROCESS_CACHE.counters


@dataclass(frozen=True, slots=True)
class ScanCache:
    """The read cache as one scan may use it.

    `scope` is the stream, the location and the rights; `place` is the object, once there is one.
    """

    scope: tuple[str, str]
    limit_bytes: int
    place: tuple[str, int] = ("", 0)

    @classmethod
    def of(cls, storage: Storage, stream_id: str, limit_bytes: int) -> "ScanCache | None":
        """Return the cache for a stream; None if it is off, or nothing tells users apart."""
        rights = storage.rights() if limit_bytes else None
        return None if rights is None else cls((stream_id, rights), limit_bytes)

    def object(self, entry: SegmentEntry) -> "ScanCache":
        """Return the cache of one segment."""
        return replace(self, place=(entry.path, entry.footer_crc))

    def fetch(
        self, spans: Sequence[Span], load: Callable[[Sequence[Span]], Sequence[Loaded]]
    ) -> list[Loaded]:
        """Return the verified bytes of ranges of the object, or errors; see `ReadCache.fetch`."""
        place = (self.scope, *self.place)
        return PROCESS_CACHE.fetch(
            [(place, span) for span in spans],
            lambda keys: load([span for _, span in keys]),
            limit_bytes=self.limit_bytes,
        )


def fetch_through(
    cache: ScanCache | None,
    spans: Sequence[Span],
    load: Callable[[Sequence[Span]], Sequence[Loaded]],
) -> Sequence[Loaded]:
    """Return the verified bytes of ranges, or errors; without a cache all of them are loaded."""
    return load(spans) if cache is None else cache.fetch(spans, load)
