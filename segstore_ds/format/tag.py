"""Tags: named cuts, as the root stores them (FORMAT.md 3.1)."""

from dataclasses import dataclass

from segstore_ds.format.record import Row, TimeUs

TAGS_BYTES = 8_320  # the share of tags in the root: about 200 with names of ten characters
TAG_BYTES = 30  # of a tag, besides its name
SHOWN_TAGS = 50  # the most that an error lists


@dataclass(frozen=True, slots=True)
class Tag(Row):
    """A named cut: its offset, and the version and time of the commit that named it."""

    offset: int
    version: int
    time_us: TimeUs
