"""Compaction debt: the segments that a compaction with the default targets would join. Pure."""

from collections.abc import Iterable

import numpy as np

from segstore_ds.format.parts.rows import Ints
from segstore_ds.options.compaction import CompactRules


def small_segments(
    pieces: Iterable[tuple[Ints, Ints]], rules: CompactRules | None = None
) -> tuple[int, int]:
    """Return how many segments fit into one with a neighbour, and their encoded bytes.

    `pieces` are rows and bytes of neighbouring segments in offset order, none empty. A compaction
    of all of them leaves none whose schemas can be joined.

    >>> rules = CompactRules(target_rows=10, target_bytes=100)
    >>> pieces = [(np.array([9, 9, 1]), np.array([5, 6, 7])), (np.array([3]), np.array([8]))]
    >>> small_segments(pieces, rules)
    (3, 21)
    """
    rules = rules or CompactRules()
    count = total = 0
    # The last segment of the pieces before, and whether it was counted.
    last_rows, last_sizes, was_small = np.zeros(0, np.int64), np.zeros(0, np.int64), False
    for rows, sizes in pieces:
        all_rows, all_sizes = np.append(last_rows, rows), np.append(last_sizes, sizes)
        joins = (all_rows[:-1] + all_rows[1:] <= rules.target_rows) & (
            all_sizes[:-1] + all_sizes[1:] <= rules.target_bytes
        )
        small = np.append(joins, [False]) | np.append([was_small], joins)
        count += int(small.sum()) - was_small
        total += int(all_sizes[small].sum()) - (int(last_sizes[0]) if was_small else 0)
        last_rows, last_sizes, was_small = all_rows[-1:], all_sizes[-1:], bool(small[-1])
    return count, total
