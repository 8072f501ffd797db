"""Views of several pieces of memory, without a copy.

Bytes that are written at once or compared as one may lie in several places; a composite passes its
components on in order. It is flat, has no empty components, and is immutable.

Source: Pravega's CompositeBufferView.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from segstore_ds.cache.views import (
    EMPTY,
    ArrayView,
    BufferView,
    ByteArraySegment,
    check_range,
)
from segstore_ds.errors import InvalidInputError


class CompositeView(BufferView):
    """Several non-empty views as one; made by `join`, which leaves out empty ones."""

    __slots__ = ("_parts", "_starts")

    def __init__(self, parts: Iterable[ArrayView]) -> None:
        self._parts = tuple(parts)
        starts = [0]
        for part in self._parts:
            starts.append(starts[-1] + part.length)
        self._starts = starts

    @property
    def length(self) -> int:  # noqa: D102
        return self._starts[-1]

    @property
    def parts(self) -> tuple[ArrayView, ...]:
        """The components."""
        return self._parts

    def buffers(self) -> Iterator[memoryview]:  # noqa: D102
        return (part.data for part in self._parts)

    def slice(self, start: int = 0, end: int | None = None) -> BufferView:  # noqa: D102
        start, end = check_range(start, end, self.length)
        found = []
        place = bisect_right(self._starts, start) - 1
        while start < end:
            first = self._starts[place]
            last = min(end, self._starts[place + 1])
            found.append(self._parts[place].slice(start - first, last - first))
            start = last
            place += 1
        return join(found)


def join(views: Iterable[BufferView]) -> BufferView:
    """Return views as one: `EMPTY` for none, a slice of the only one, else a composite.

    Nested composites are flattened and empty views left out; nothing is copied.
    """
    parts = tuple(_flat(views))
    if not parts:
        return EMPTY
    return parts[0].slice() if len(parts) == 1 else CompositeView(parts)


def _flat(views: Iterable[BufferView]) -> Iterator[ArrayView]:
    for view in views:
        # Check the exact class first: isinstance of an abstract class is slow.
        if type(view) is ByteArraySegment:
            if view.length:
                yield view
        elif isinstance(view, CompositeView):
            yield from view.parts
        elif not isinstance(view, ArrayView):
            raise InvalidInputError("not a view", type=type(view).__name__)
        elif view.length:
            yield view
