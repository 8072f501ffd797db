"""What changes between the files that a table lists and those that it should list. Pure.

Any table format can say this: files are added and removed, and for each of them whether that
changes the table's rows or only where they lie.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from segstore_ds.publish.listing import Listing, WantedFile


@dataclass(frozen=True, slots=True)
class Listed:
    """What a table lists: offsets `[start, end)` of each file by its key, and of all of them."""

    start: int
    end: int
    spans: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Changes:
    """Files to add, and keys of files to remove, each with whether that changes the rows."""

    added: tuple[tuple[WantedFile, bool], ...]
    removed: tuple[tuple[str, bool], ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


def plan_changes(listed: Listed, wanted: Listing, *, same_events: bool = True) -> Changes:
    """Compare a table with what a version publishes.

    Files that both have may be left out on both sides. `same_events` says that an offset stands for
    the same event in both. A file that is listed again at other offsets is added, which replaces it
    in the table.

    >>> listed = Listed(0, 20, {"a": (0, 10), "b": (10, 20)})
    >>> merged = Listing(0, 20, (WantedFile("c", 0, 20, 5),))
    >>> changes = plan_changes(listed, merged)
    >>> [(file.key, change) for file, change in changes.added], changes.removed
    ([('c', False)], (('a', False), ('b', False)))
    """
    kept = {file.key for file in wanted.files}
    added = [file for file in wanted.files if listed.spans.get(file.key) != (file.start, file.end)]
    removed = {key: span for key, span in listed.spans.items() if key not in kept}
    spans = [(file.start, file.end) for file in added] + list(removed.values())
    low, high = _moved_range(listed, wanted, spans) if same_events else (0, 0)

    def is_moved(start: int, end: int) -> bool:
        return low <= start and end <= high

    return Changes(
        tuple((file, not is_moved(file.start, file.end)) for file in added),
        tuple((key, not is_moved(*span)) for key, span in removed.items()),
    )


def _moved_range(listed: Listed, wanted: Listing, spans: list[tuple[int, int]]) -> tuple[int, int]:
    """Return the range of offsets whose events the table keeps, and only files move.

    A file that holds other events as well is no moved one, and what it overlaps is none either.
    """
    low, high = max(listed.start, wanted.start), min(listed.end, wanted.end)
    while True:
        next_low = max((end for start, end in spans if start < low < end), default=low)
        next_high = min((start for start, end in spans if start < high < end), default=high)
        if (next_low, next_high) == (low, high):
            return low, high
        low, high = next_low, next_high
