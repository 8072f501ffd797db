"""Records of copies: every mode comes back, unknown fields are kept, contradictions are damage."""

import pytest

from segstore_ds.errors import CorruptionError
from segstore_ds.format.copies import CLONE, EVENTS, SEGMENTS, CopyRecord, mode_of, parse_copy

RECORDS = {
    SEGMENTS: CopyRecord("c", SEGMENTS, "s", 0, 3, 5, 9, "d", 2, 100, done=True),
    EVENTS: CopyRecord("c", EVENTS, "s", 1, 3, 5, 9, "d", progress=3, extra={"later": [1]}),
    CLONE: CopyRecord("c", CLONE, "s", 0, 3, 5, 9, "d", 2, 0, done=True, origin="file:///a"),
}


@pytest.mark.parametrize("mode", RECORDS)
def test_record_comes_back_with_unknown_fields(mode):
    record = RECORDS[mode]
    assert parse_copy("c", record.to_value()) == record
    assert mode_of(record.to_value()) == mode


@pytest.mark.parametrize("mode", RECORDS)
def test_every_field_of_a_record_is_required(mode):
    value = RECORDS[mode].to_value()
    for name in value.keys() - {"later"}:
        with pytest.raises(CorruptionError, match="copy 'c'"):
            parse_copy("c", {key: item for key, item in value.items() if key != name})


@pytest.mark.parametrize("mode", [SEGMENTS, CLONE])
def test_copy_in_one_commit_is_always_done(mode):
    with pytest.raises(CorruptionError, match="contradicts"):
        parse_copy("c", {**RECORDS[mode].to_value(), "done": False})


def test_record_that_is_no_object_has_no_mode():
    assert mode_of(3) == mode_of({"mode": 3}) == ""
