"""The first error: kept, and raised to every later caller."""

import copy

from segstore_ds.errors import InternalError, SegstoreError


class FirstError:
    """Keeps the first of several errors."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def keep(self, error: BaseException) -> None:
        """Keep an error, unless one is kept already."""
        if self.error is None:
            self.error = error

    def check(self) -> None:
        """Raise a kept SegstoreError, or an InternalError chained to any other kept error."""
        if self.error is None:
            return
        if isinstance(self.error, SegstoreError):
            # Raise a copy: an exception raised repeatedly would accumulate tracebacks.
            raise copy.copy(self.error) from self.error
        raise InternalError(
            "an earlier call failed for a reason other than storage", cause=repr(self.error)
        ) from self.error
