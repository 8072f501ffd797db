"""Which manifests a snapshot keeps, and which it writes anew. Pure.

An append writes one manifest. A change in the middle writes those anew whose range it touches.
Small manifests at the end are merged now and then, so 100,000 files have about a hundred.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from segstore_ds.publish.manifests import Entry, Manifest

_MERGED = 32  # so many small manifests at the end become one
_SMALL = 1024  # files: fewer make a manifest small
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Files of neighbouring manifests, less those that go, and new files beside them."""

    old: tuple[Manifest, ...]
    added: tuple[Entry, ...]

    @property
    def files(self) -> int:
        """How many files there may be."""
        return sum(manifest.files for manifest in self.old) + len(self.added)


def plan_manifests(
    manifests: Sequence[Manifest], removed: Sequence[Span], added: Sequence[Entry]
) -> list[Manifest | Rewrite]:
    """Return the manifests of the next snapshot, in the order of their offsets.

    `manifests` and `added` are sorted, and `removed` are the spans of files that go.
    """
    gone = sorted(removed)
    come = [(entry.start, entry.end) for entry in added]
    items: list[Manifest | Rewrite] = []
    old: list[Manifest] = []
    new: list[Entry] = []

    def flush() -> None:
        if old or new:
            items.append(Rewrite(tuple(old), tuple(new)))
        old.clear()
        new.clear()

    rest = list(added)[::-1]
    for manifest in manifests:
        while rest and rest[-1].start < manifest.start:
            new.append(rest.pop())
        if not manifest.files:
            continue
        span = manifest.start, manifest.end
        if _touches(gone, span) or _touches(come, span):
            old.append(manifest)
        else:
            flush()
            items.append(manifest)
    new += rest[::-1]
    flush()
    _merge_small(items)
    return items


def _touches(spans: Sequence[Span], span: Span) -> bool:
    """Tell whether one of some sorted, disjoint spans overlaps another one."""
    start, end = span
    place = bisect_right(spans, start, key=lambda other: other[1])
    return place < len(spans) and spans[place][0] < end


def _merge_small(items: list[Manifest | Rewrite]) -> None:
    """Make the small manifests at the end one, if there are enough of them."""
    run = 0
    while run < len(items) and items[-1 - run].files < _SMALL:
        run += 1
    if run < _MERGED:
        return
    last = items[-run:]
    old = [m for item in last for m in ((item,) if isinstance(item, Manifest) else item.old)]
    new = [entry for item in last if isinstance(item, Rewrite) for entry in item.added]
    items[-run:] = [Rewrite(tuple(old), tuple(new))]
