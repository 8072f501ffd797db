"""Fixtures of the tests of the engine."""

import pytest
from stream_kit import TIGHT

from tests.follower_kit import Pair


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few commits fill parts, and merge them."""
    for name, value in TIGHT.items():
        monkeypatch.setattr(name, value)


@pytest.fixture
def pair() -> Pair:
    """A stream, and a folder that may follow it."""
    return Pair()
