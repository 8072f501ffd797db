"""What a call to the filesystem leaves behind when it fails."""

import gc
import uuid
import weakref

import pytest

from segstore_ds.errors import MissingObjectError
from segstore_ds.storage import open_storage


class _Held:
    """Something that a frame refers to."""


def test_a_failed_call_holds_nothing_of_those_who_asked() -> None:
    """An error in a cycle with its frames kept all of them until somebody tidied up."""
    storage = open_storage(f"memory://{uuid.uuid4().hex}")

    def ask() -> "weakref.ref[_Held]":
        held = _Held()
        with pytest.raises(MissingObjectError):
            storage.get("log/1")
        return weakref.ref(held)

    gc.disable()
    try:
        assert ask()() is None
    finally:
        gc.enable()
