"""A commit that nobody could read again is refused before anything is put."""

import uuid
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from stream_kit import SCHEMA, make_stream, numbers, values

import segstore_ds
from segstore_ds.errors import InvalidInputError
from segstore_ds.format.root import Retired, Root
from segstore_ds.log.commit import Change
from segstore_ds.status.table import Slot
from segstore_ds.stream.opening import open as open_on


@pytest.mark.parametrize("batch_id", [2.0, True, np.float64(2), np.bool_(1), "2", None])
def test_batch_id_must_be_an_integer(batch_id: object) -> None:
    """JSON would say 2.0 or true, which every reader takes for damage."""
    stream, storage = make_stream(1)
    with pytest.raises(InvalidInputError):
        stream.append(numbers(0, 1), writer_id="etl", batch_id=batch_id)
    assert values(open_on(storage)) == list(range(10))


def test_a_batch_id_of_numpy_is_taken() -> None:
    stream, storage = make_stream(0)
    for batch in np.array([3, 4, 4]):
        stream.append(numbers(int(batch), int(batch) + 1), writer_id="etl", batch_id=batch)
    assert values(open_on(storage)) == [3, 4]


@pytest.mark.parametrize("keep", [3.0, True, "3"])
def test_min_versions_must_be_an_integer(keep: object) -> None:
    stream, storage = make_stream(5)
    with pytest.raises(InvalidInputError, match="min_versions"):
        stream.maintain(keep=0, min_versions=keep)
    assert open_on(storage)._log.root.log_start == 0


def test_whatever_else_slips_through_ends_no_stream() -> None:
    """The last guard: what is put is read before, by the code that reads it afterwards."""
    stream, storage = make_stream(1)
    before = stream.version
    root = stream._log.root
    (entry,) = root.entries
    assert entry.frame is not None
    cut, longer = entry.frame.data[:-64], entry.frame.size + 64
    for wrong in (
        {"client": "x" * 500},
        {"operation": "x" * 200},
        {"head": 0.0},
        {"sealed": 0},
        {"properties": {"name": 1}},
        {"entries": (replace(entry, rows=10.0),)},
        {"entries": (replace(entry, stats='{"id":'),)},
        {"entries": (replace(entry, frame=replace(entry.frame, size=longer)),)},
        {"entries": (replace(entry, frame=replace(entry.frame, data=cut)),)},
        {"retired": (Retired("segment", "../outside", 0, 0),)},
        {"epochs": (*root.epochs, replace(root.epoch, schema=None))},
    ):
        with pytest.raises(InvalidInputError, match="could not be read back"):
            # A repair may change every field, so no rule of a transition refuses it before.
            stream._log.commit(partial(_replaced, {"operation": "repair", **wrong}))
    assert open_on(storage).version == before
    stream.append(numbers(10, 11))
    assert values(open_on(storage)) == list(range(11))


def test_frames_that_would_be_cut_elsewhere_are_not_put() -> None:
    """Their sizes add up, but a reader would take a part of the second one for the first."""
    stream, storage = make_stream(2)
    moved = [
        replace(entry, frame=replace(entry.frame, size=entry.frame.size + by))
        for entry, by in zip(stream._log.root.entries, (64, -64), strict=True)
        if entry.frame is not None
    ]
    with pytest.raises(InvalidInputError, match="could not be read back"):
        stream._log.commit(partial(_replaced, {"operation": "repair", "entries": (*moved,)}))
    assert values(open_on(storage)) == list(range(20))


def _replaced(wrong: dict[str, object], root: Root, _: Slot) -> Change[None]:
    return Change(replace(root, **wrong))


@pytest.mark.parametrize("mode", ["segments", "clone", "events"])
def test_copy_with_a_wrong_argument_leaves_no_stream(mode: str) -> None:
    stream = segstore_ds.create(f"memory://{uuid.uuid4().hex}", SCHEMA)
    stream.append(numbers(0, 20))
    target = f"memory://{uuid.uuid4().hex}"
    with pytest.raises(InvalidInputError):
        stream.copy_to(target, copy_id="c", mode=mode, seal=1)
    stream.copy_to(target, copy_id="c", mode=mode, seal=True)
    assert values(segstore_ds.open(target)) == values(stream)
    assert segstore_ds.open(target).sealed
