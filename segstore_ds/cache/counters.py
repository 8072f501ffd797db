"""Counters of a write cache; they only grow, and each event counts once."""

import os
import threading
from dataclasses import asdict, dataclass, replace
from typing import Any, Self


@dataclass(slots=True)
class CacheCounters:
    """What a write cache did; changed under the lock of the service that owns it."""

    hits: int = 0  # reads answered from a buffer
    misses: int = 0  # reads that no buffer could answer
    loads: int = 0  # reads of the channel
    accepted_records: int = 0  # records written, large ones included
    accepted_bytes: int = 0  # bytes of the accepted records
    laid_records: int = 0  # accepted records that their producer encoded into a buffer's memory
    channel_writes: int = 0  # writes to the channel: one per buffer, one per large record
    channel_bytes: int = 0  # bytes of the writes to the channel
    scattered_writes: int = 0  # writes to the channel that are parts, in any order
    write_seconds: float = 0.0  # time spent in writes to the channel
    buffers_evicted: int = 0  # buffers whose content was dropped to take new records
    records_evicted: int = 0  # records in the evicted buffers
    large_records: int = 0  # records that bypassed the buffers
    waits: int = 0  # how often a writer found no free buffer
    wait_seconds: float = 0.0  # time that writers waited

    @property
    def hit_rate(self) -> float:
        """Hits per read; 0 without reads."""
        return self.hits / max(self.hits + self.misses, 1)

    @property
    def bytes_per_write(self) -> float:
        """Bytes per write to the channel; 0 without writes."""
        return self.channel_bytes / max(self.channel_writes, 1)

    def snapshot(self) -> Self:
        """Return a copy that later events do not change."""
        return replace(self)

    def add(self, other: Self) -> None:
        """Add another's counters to these."""
        for name in self.__slots__:
            if amount := getattr(other, name):
                setattr(self, name, getattr(self, name) + amount)

    def as_dict(self) -> dict[str, Any]:
        """Return the counters and both ratios by name."""
        ratios = {"hit_rate": self.hit_rate, "bytes_per_write": self.bytes_per_write}
        return asdict(self) | ratios

    def __str__(self) -> str:
        """Return the values that are not zero, as `name=value` in a fixed order."""
        return " ".join(f"{name}={value:.6g}" for name, value in self.as_dict().items() if value)


class WrittenHere:
    """What the write caches of this process wrote, by the URL of the folder."""

    def __init__(self) -> None:
        self._by_url: dict[str, CacheCounters] = {}
        self.unlock()

    def unlock(self) -> None:
        """Make a new lock: in a forked child the old one may be held forever."""
        self._lock = threading.Lock()

    def add(self, url: str, counters: CacheCounters) -> None:
        """Add the counters of caches that have ended."""
        with self._lock:
            self._by_url.setdefault(url, CacheCounters()).add(counters)

    def at(self, url: str) -> CacheCounters:
        """Return a copy of the counters of a folder."""
        with self._lock:
            return self._by_url.get(url, CacheCounters()).snapshot()


WRITTEN_HERE = WrittenHere()
os.register_at_fork(after_in_child=WRITTEN_HERE.unlock)
