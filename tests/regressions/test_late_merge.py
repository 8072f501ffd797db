"""A late write that merges its columns is committed with all of them, or is refused."""

import pytest
from stream_kit import make_stream

from segstore_ds.errors import SchemaMismatchError
from segstore_ds.stream.opening import open as open_on


def test_late_write_does_not_add_some_columns_and_lose_others():
    """Seed 20270128001: a restore had taken two columns away, one of them under a new name."""
    stream, storage = make_stream(2)
    before = stream.version
    event = {"n": 7, "c": "c", "d": "d"}
    stream.append({**event, "n": 6}, merge_schema=True)
    late = open_on(storage, clock=storage.time.clock)
    stream.change_schema(rename={"c": "c2"})
    stream.restore(before)
    with pytest.raises(SchemaMismatchError, match="write again"):
        late.append(event, merge_schema=True)
    late.refresh().append(event, merge_schema=True)
    assert late.read(late.tail - 1).read_all().to_pylist() == [{**event, "s": None}]
    assert late.verify().problems == []
