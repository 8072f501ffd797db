"""Statistics that contradict the events are reported, whatever they say; the rest is verified."""

from dataclasses import replace

import pytest
from stream_kit import STAGED, make_stream, numbers
from virtual_time import TimedStorage

from segstore_ds.format.envelope import encode_envelope
from segstore_ds.format.root import encode_root
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

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
