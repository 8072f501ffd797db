"""What a call to the filesystem leaves behind when it fails."""

import gc
import uuid
import weakref

import pytest

from segstore_ds.errors import MissingObjectError
from segstore_ds.storage import open_storage


class _Held:
    """Something that a frame refers to."""


def test_failed_call_keeps_no_reference_to_its_callers() -> None:
    """An error in a reference cycle would keep its frames alive until a collection."""
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
