"""Views of several pieces of memory, without a copy.

Bytes that are written at once may lie in several places; a composite passes its components on in
order. It is flat, has no empty components, and is immutable.

Source: Pravega's CompositeBufferView.
"""

from collections.abc import Iterable, Iterator

from segstore_ds.cache.views import EMPTY, BufferView, ByteArraySegment
from segstore_ds.errors import InvalidInputError


class CompositeView(BufferView):
    """Several non-empty segments as one; made by `join`, which leaves out empty ones."""

    __slots__ = ("_length", "_parts")

    def __init__(self, parts: Iterable[ByteArraySegment]) -> None:
        self._parts = tuple(parts)
        self._length = sum(part.length for part in self._parts)

    @property
    def length(self) -> int:  # noqa: D102
        return self._length

    @property
    def parts(self) -> tuple[ByteArraySegment, ...]:
        """The components."""
        return self._parts

    def buffers(self) -> Iterator[memoryview]:  # noqa: D102
        return (part.data for part in self._parts)


def join(views: Iterable[BufferView]) -> BufferView:
    """Return views as one: `EMPTY` for none, the only one itself, else a composite.

    Nested composites are flattened and empty views left out; nothing is copied.
    """
    parts = tuple(_flat(views))
    if not parts:
        return EMPTY
    return parts[0] if len(parts) == 1 else CompositeView(parts)


def _flat(views: Iterable[BufferView]) -> Iterator[ByteArraySegment]:
    for view in views:
        # Check the exact class first: isinstance of an abstract class is slow.
        if type(view) is ByteArraySegment:
            if view.length:
                yield view
        elif isinstance(view, CompositeView):
            yield from view.parts
        else:
            raise InvalidInputError("not a view", type=type(view).__name__)
