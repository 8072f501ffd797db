"""How far an object has come on its way to its channel."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frontiers:
    """Byte positions, each at or below the one before; `recycled` is at or below `flushed`.

    Attributes:
        accepted: The end of what was written into the cache.
        flushed: The channel has everything below.
        durable: Everything below survives a crash.
        visible: A commit names everything below.
        recycled: Nothing below is in a buffer.
    """

    accepted: int
    flushed: int
    durable: int
    visible: int
    recycled: int
