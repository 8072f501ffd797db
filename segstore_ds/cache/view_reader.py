"""A cursor over the bytes of a view."""

import operator
import struct
from typing import TYPE_CHECKING, Any

from segstore_ds.errors import InvalidInputError

if TYPE_CHECKING:
    from segstore_ds.cache.views import BufferView

_UINT8 = struct.Struct(">B")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


class ViewReader:
    """A cursor. Whatever would read past the end raises and moves nothing.

    Args:
        view: What to read.
    """

    __slots__ = ("_place", "_view")

    def __init__(self, view: "BufferView") -> None:
        self._view = view
        self._place = 0

    @property
    def available(self) -> int:
        """How many bytes are left."""
        return self._view.length - self._place

    def read_into(self, target: Any) -> int:
        """Fill a writable buffer, or as much of it as there are bytes left; returns how many.

        Raises:
            InvalidInputError: The target can't be written.
        """
        count = self._view.slice(self._place).copy_to(target)
        self._place += count
        return count

    def read_slice(self, count: int) -> "BufferView":
        """Return a view of the next bytes.

        Raises:
            InvalidInputError: There are not so many; so too for all reads below.
        """
        if not 0 <= operator.index(count) <= self.available:
            raise InvalidInputError(
                "read past the end of a view", asked=count, available=self.available
            )
        part = self._view.slice(self._place, self._place + count)
        self._place += count
        return part

    def read_rest(self) -> bytes:
        """Return a copy of what is left; empty the second time."""
        return self.read_slice(self.available).copy()

    def read_uint8(self) -> int:
        """Read one byte; raises as `read_slice`."""
        return self._number(_UINT8)

    def read_int32(self) -> int:
        """Read four bytes; raises as `read_slice`."""
        return self._number(_INT32)

    def read_int64(self) -> int:
        """Read eight bytes; raises as `read_slice`."""
        return self._number(_INT64)

    def _number(self, number: struct.Struct) -> int:
        value: int = number.unpack(self.read_slice(number.size).copy())[0]
        return value
