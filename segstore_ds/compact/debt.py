"""Compaction debt: the segments that a compaction with the default targets would join. Pure."""

import numpy as np

from segstore_ds.format.parts.rows import Ints
from segstore_ds.options.compaction import CompactRules


def small_segments(rows: Ints, sizes: Ints, rules: CompactRules | None = None) -> tuple[int, int]:
    """Return how many segments fit into one with a neighbour, and their encoded bytes.

    They are given by their rows and bytes in offset order, none empty. A compaction of all of them
    leaves none whose schemas can be joined.

    >>> rules = CompactRules(target_rows=10, target_bytes=100)
    >>> small_segments(np.array([9, 9, 1, 3]), np.array([5, 6, 7, 8]), rules)
    (3, 21)
    """
    rules = rules or CompactRules()
    joins = (rows[:-1] + rows[1:] <= rules.target_rows) & (
        sizes[:-1] + sizes[1:] <= rules.target_bytes
    )
    small = np.append(joins, [False]) | np.append([False], joins)
    return int(small[: len(rows)].sum()), int(sizes[small[: len(rows)]].sum())
