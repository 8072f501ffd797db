"""Commit times of events: looked up in the history when a scan is planned, carried by its tasks.

A task carries only the commits of its own events, so a long history does not make tasks large. The
history is never rewritten, so neither compaction nor upkeep changes a commit time.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from segstore_ds.format.parts.rows import Ints

TIME_TYPE = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True, eq=False)
class CommitTimes:
    """The commits of a range of events: ascending end offsets, and times in microseconds."""

    ends: Ints
    times_us: Ints

    def within(self, start: int, end: int) -> "CommitTimes":
        """Return the commits of the events `[start, end)`."""
        low = int(np.searchsorted(self.ends, start, "right"))
        high = int(np.searchsorted(self.ends, end, "left")) + 1
        return CommitTimes(self.ends[low:high], self.times_us[low:high])

    def column(self, start: int, rows: int) -> pa.Array:
        """Return the commit time of each of `rows` events from the offset `start` on.

        >>> times = CommitTimes(np.array([2, 5]), np.array([10, 20]))
        >>> times.column(1, 3).cast("int64").to_pylist()
        [10, 20, 20]
        """
        found = np.searchsorted(self.ends, np.arange(start, start + rows), "right")
        return pa.array(self.times_us[found]).view(TIME_TYPE)
