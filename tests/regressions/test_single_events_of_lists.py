"""Single events whose lists hold null lists: taken, and then neither read nor written."""

import pyarrow as pa
import pytest

import segstore_ds as segstore

VALUES = {
    "lists": (pa.list_(pa.list_(pa.int32())), [[1], None, []]),
    "maps": (pa.list_(pa.map_(pa.string(), pa.int8())), [None, [("a", 1)]]),
    "values": (pa.map_(pa.string(), pa.list_(pa.int8())), [("a", None), ("b", [1])]),
    "deep": (pa.struct([("l", pa.list_(pa.list_(pa.int8())))]), {"l": [None, [2]]}),
}


@pytest.mark.parametrize("name", VALUES)
def test_null_lists_within_lists_are_written(tmp_path, name):
    """pyarrow can't make an array of scalars of such lists."""
    kind, value = VALUES[name]
    events = [{"c": value}, {"c": None}, {}, {"c": pa.array([value], kind)[0]}]
    stored = [value, None, None, value]
    stream = segstore.create(tmp_path / "s", pa.schema([("c", kind)]), upkeep=None)
    with stream.appender() as appender:
        for event in events:
            appender.append(event)
        assert appender.read().read_all()["c"].to_pylist() == stored
    stream.append(events)
    assert stream.refresh().read().read_all()["c"].to_pylist() == stored * 2
