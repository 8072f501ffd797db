"""How far an object has progressed to its channel."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frontiers:
    """Byte positions, each at or below the one before; `recycled` is at or below `flushed`.

    Attributes:
        accepted: The end of the bytes written to the cache.
        flushed: The channel has everything below.
        durable: Everything below survives a crash.
        visible: A commit names everything below.
        recycled: No buffer holds anything below.
    """

    accepted: int
    flushed: int
    durable: int
    visible: int
    recycled: int
