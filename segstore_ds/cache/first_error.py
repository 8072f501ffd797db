"""The first error: kept, and raised to everybody who comes later."""

import copy

from segstore_ds.errors import InternalError, SegstoreError


class FirstError:
    """Keeps the first of several errors."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def keep(self, error: BaseException) -> None:
        """Keep an error, unless there is one."""
        if self.error is None:
            self.error = error

    def check(self) -> None:
        """Raise the error, if there is one.

        Raises:
            SegstoreError: As it was kept.
            InternalError: Something that is no error of segstore was kept; it is chained.
        """
        if self.error is None:
            return
        if isinstance(self.error, SegstoreError):
            # A copy: one that is raised again and again would gather tracebacks.
            raise copy.copy(self.error) from self.error
        raise InternalError(
            "an earlier call failed for another reason than storage", cause=repr(self.error)
        ) from self.error
