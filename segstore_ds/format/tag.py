"""Tags: named cuts, as the root and its blob of tags store them (FORMAT.md 3.1)."""

from dataclasses import dataclass

from segstore_ds.format.record import Row, TimeUs

TAGS_LIMIT = 100_000
SHOWN_TAGS = 50  # the most that an error lists


@dataclass(frozen=True, slots=True)
class Tag(Row):
    """A named cut: its offset, and the version and time of the commit that named it."""

    offset: int
    version: int
    time_us: TimeUs
