"""A commit that nobody could read again is refused, and one whose statistics lie is reported."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from stream_kit import STAGED, make_stream, numbers, values
from virtual_time import TimedStorage

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.envelope import encode_envelope
from segstore_ds.format.root import Retired, Root, encode_root
from segstore_ds.log.commit import Change
from segstore_ds.status.table import Slot
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream


@pytest.mark.parametrize("batch_id", [2.0, True, np.float64(2), np.bool_(1), "2", None])
def test_numbers_must_be_integers(batch_id: object) -> None:
    """JSON would say 2.0 or true, which every reader takes for damage."""
    stream, storage = make_stream(1)
    with pytest.raises(InvalidInputError):
        stream.append(numbers(0, 1), writer_id="etl", batch_id=batch_id)
    with pytest.raises(InvalidInputError, match="min_versions"):
        stream.maintain(keep=0, min_versions="3" if batch_id is None else batch_id)
    assert values(open_on(storage)) == list(range(10))
    assert open_on(storage)._log.root.log_start == 0


def test_a_batch_id_of_numpy_is_taken() -> None:
    stream, storage = make_stream(0)
    for batch in np.array([3, 4, 4]):
        stream.append(numbers(int(batch), int(batch) + 1), writer_id="etl", batch_id=batch)
    assert values(open_on(storage)) == [3, 4]


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


def _replaced(wrong: dict[str, object], root: Root, _: Slot) -> Change[None]:
    return Change(replace(root, **wrong))


LIES = {
    "a column that there is not": '{"int:zz":[1,2,0]}',
    "another maximum": '{"int:n":[0,12,0]}',
    "no statistics": "[]",
    "no JSON": "{",
}


def lie(stream: Stream, storage: TimedStorage, stats: str) -> Stream:
    """Have the newest root tell something else of its first segment."""
    root = stream._log.root
    first, *others = root.entries
    changed = replace(root, entries=(replace(first, stats=stats), *others))
    storage.put(f"log/{root.version:020d}", encode_envelope(encode_root(changed)))
    return open_on(storage, clock=storage.time.clock)


@pytest.mark.usefixtures("no_inline")
@pytest.mark.parametrize("what", LIES)
def test_statistics_in_the_status_that_lie_are_reported(what: str) -> None:
    """Of one segment; all the others are counted and sound."""
    stream, storage = make_stream(1)
    stream.append(numbers(10, 20), layout=STAGED)
    assert stream.verify().ok
    report = lie(stream, storage, LIES[what]).verify()
    assert (report.segments, report.rows) == (2, 20)
    assert len(report.problems) == 1, report.problems
