"""When events were committed: found in the history while a scan is planned, carried by its tasks.

A task carries the commits of its own events alone, so a long history makes no task large. The
history is never rewritten, so neither compaction nor purge changes an answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from segstore_ds.format.parts.packed import Ints
from segstore_ds.format.root import Root
from segstore_ds.status.history import History

if TYPE_CHECKING:
    from segstore_ds.read.plan import Reading, ReadTask

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


def date_tasks(
    history: History, root: Root, reading: "Reading", tasks: "Sequence[ReadTask]"
) -> "list[ReadTask]":
    """Return the tasks of a scan with the commits of their events.

    Raises:
        NotFoundError: The stream is older than its history, and so are events of the range.
        FormatError: The history can't be read.
        StorageError: The storage failed.
    """
    if not tasks:
        return []
    times = CommitTimes(*history.commit_times(root, reading.start, reading.end))
    dated = []
    for task in tasks:
        first, last = task.slices[0], task.slices[-1]
        span = (first.start + first.rows[0], last.start + last.rows[1])
        dated.append(replace(task, times=times.within(*span)))
    return dated
