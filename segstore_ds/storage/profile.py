"""What requests to a storage cost, and for how long their answers may be relied on.

Reads, commits and uploads choose their numbers by these fields, never by the class of a storage.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """What a storage is like; a wrapper has that of the storage inside.

    Attributes:
        is_far: Whether requests take milliseconds: reads send them ahead, and a look that may be
            left out is left out.
        read_threads: How many frames a read works on at once; twice as many are held.
        fetch_factor: How many times as large fetches are as on a local disk.
        part_bytes: A `StagedWriter.write` should have at least as many.
        trust_s: How long a commit relies on the base that it saw; 0 looks before each put.
        hint_every_s: How often a handle writes the hint of its log; 0 after each commit.
    """

    is_far: bool
    read_threads: int
    fetch_factor: int
    part_bytes: int
    trust_s: float
    hint_every_s: float


NEAR = Profile(
    is_far=False, read_threads=4, fetch_factor=1, part_bytes=1, trust_s=0.0, hint_every_s=0.0
)
FAR = Profile(
    is_far=True, read_threads=8, fetch_factor=4, part_bytes=1, trust_s=1.0, hint_every_s=1.0
)
