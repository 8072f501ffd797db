"""Progress: what long work tells a caller's callback, between two steps of it."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Gets how much is done, and of how much: events, or of `maintain` objects. What it raises ends the
work, which may be repeated as after any failure."""


def unheard(_done: int, _total: int) -> None:
    """Tell nobody."""
