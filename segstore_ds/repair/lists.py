"""Lists of parts, of the segments or of the history: what was lost.

This module writes nothing.
"""

from collections.abc import Iterable

from segstore_ds.format.parts.kinds import LIST, encode_object
from segstore_ds.format.root import PartRef
from segstore_ds.repair.tiling import tile
from segstore_ds.status.store import is_proven


def find_list(
    ref: PartRef,
    told: Iterable[Iterable[PartRef]],
    stored: Iterable[tuple[PartRef, ...]],
) -> tuple[PartRef, ...] | None:
    """Return the parts of a lost list; None if they are not known.

    `told` has the parts of each older root, newest first. `stored` has guesses, which count only if
    one of them has the list's digest; none is made if the older roots know the list.
    """
    found: dict[int, PartRef] = {}
    for parts in told:
        for part in parts:
            if ref.start <= part.start and part.end <= ref.end:
                found.setdefault(part.start, part)
        tiled = tile(found, ref.start, ref.end)
        if tiled is not None and sum(part.count for part in tiled) == ref.count:
            return tuple(tiled)
    return next(
        (parts for parts in stored if is_proven(ref, encode_object(LIST, parts))),
        None,
    )
