"""Fixtures of the tests of the engine."""

from collections.abc import Iterator
from functools import lru_cache

import pytest
from follower_kit import Pair
from stream_kit import CHOSEN, STAGED, TIGHT

from segstore_ds.format.parts import rows
from segstore_ds.stream import writes
from segstore_ds.write import append
from segstore_ds.write.batch_plan import BatchRules, Way

# They read the same status objects thousands of times, which took a third of their time.
SWEEPS = ("crash", "property", "simulation", "test_followers")


@pytest.fixture(scope="module", autouse=True)
def _decoded_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """In sweeps decode the rows of equal bytes once. That is pure; an error is raised each time."""
    with pytest.MonkeyPatch.context() as patch:
        if {request.path.parent.name, request.path.stem.rpartition("_")[0]} & {*SWEEPS}:
            patch.setattr(rows, "_decode", lru_cache(2048)(rows._decode))
        yield


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few commits fill parts, and merge them."""
    for name, value in TIGHT.items():
        monkeypatch.setattr(name, value)


@pytest.fixture
def no_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small appends write segments, too: the test is about their objects."""
    monkeypatch.setattr(append, "FRAME_MOST_BYTES", 0)
    monkeypatch.setattr(writes, "FRAME_MOST_BYTES", 0)


@pytest.fixture
def pair() -> Pair:
    """A stream, and a folder that may follow it."""
    return Pair()


@pytest.fixture(params=["arrow", "parquet"])
def each_format(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the format of what small appends and compactions write, which would be Arrow."""
    _write(request.param, monkeypatch)
    return request.param


@pytest.fixture(params=["arrow", pytest.param("parquet", marks=pytest.mark.sweep)])
def format_by_name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same for what handles segments by their names and never looks into them."""
    _write(request.param, monkeypatch)
    return request.param


def _write(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if form == "parquet":
        choose = BatchRules.format

        def settle(self: BatchRules, *, bulk: bool) -> Way:
            del bulk
            return choose(self, bulk=True)

        monkeypatch.setattr(BatchRules, "format", settle)
        monkeypatch.setitem(CHOSEN, "layout", STAGED)
