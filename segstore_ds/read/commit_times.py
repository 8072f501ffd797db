"""When events were committed: found in the history while a scan is planned, carried by its tasks.

A task carries the commits of its own events alone, so a long history makes no task large. The
history is never rewritten, so neither compaction nor purge changes an answer.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from segstore_ds.format.parts.packed import Ints

TIME_TYPE = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True, eq=False)
class CommitTimes:
    """The commits of a range of events.

    Attributes:
        ends: The offset behind the last event of each commit, ascending.
        times_us: When it was made.
    """

    ends: Ints
    times_us: Ints

    def within(self, start: int, end: int) -> "CommitTimes":
        """Return the commits of a part of the range."""
        low = int(np.searchsorted(self.ends, start, "right"))
        high = int(np.searchsorted(self.ends, end, "left")) + 1
        return CommitTimes(self.ends[low:high], self.times_us[low:high])

    def column(self, start: int, rows: int) -> pa.Array:
        """Return the commit time of each of the events from an offset on.

        >>> times = CommitTimes(np.array([2, 5]), np.array([10, 20]))
        >>> times.column(1, 3).cast("int64").to_pylist()
        [10, 20, 20]
        """
        found = np.searchsorted(self.ends, np.arange(start, start + rows), "right")
        return pa.array(self.times_us[found]).view(TIME_TYPE)
