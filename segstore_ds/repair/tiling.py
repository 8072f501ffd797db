"""Tiling: pieces that cover a range of offsets or versions without gap or overlap. Pure."""

from collections.abc import Mapping
from typing import Protocol, TypeVar


class _Placed(Protocol):
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


T = TypeVar("T", bound=_Placed)


def covers(found: Mapping[int, T], start: int, end: int) -> bool:
    """Tell whether pieces hold every offset of a range. Pure."""
    cursor = start
    for place in sorted(found):
        if place > cursor:
            return False
        cursor = max(cursor, found[place].end)
    return cursor >= end


def tile(found: Mapping[int, T], start: int, end: int) -> list[T] | None:
    """Return the pieces that cover a range without gap or overlap, or None. Pure."""
    tiled, missing = tile_known(found, start, end)
    return None if missing else tiled


def tile_known(
    found: Mapping[int, T], start: int, end: int
) -> tuple[list[T], list[tuple[int, int]]]:
    """Return the pieces within a range that don't overlap, and the gaps between them. Pure.

    >>> tile_known({}, 0, 5), tile_known({}, 5, 5)
    (([], [(0, 5)]), ([], []))
    """
    tiled: list[T] = []
    missing: list[tuple[int, int]] = []
    cursor = start
    for place in sorted(found):
        piece = found[place]
        if place < cursor or piece.end > end:
            continue
        if place > cursor:
            missing.append((cursor, place))
        tiled.append(piece)
        cursor = piece.end
    if cursor < end:
        missing.append((cursor, end))
    return tiled, missing
