"""Records of copies, pins and origins come back with unknown fields; all else is damage."""

import pytest

from segstore_ds.errors import CorruptionError
from segstore_ds.format.copies import (
    CLONE,
    EVENTS,
    SEGMENTS,
    CopyRecord,
    Origin,
    Pin,
    mode_of,
    parse_copy,
)
from segstore_ds.format.record import from_json, to_json

RECORDS = {
    SEGMENTS: CopyRecord("c", SEGMENTS, "s", 0, 3, 5, 9, "d", 2, 100),
    EVENTS: CopyRecord("c", EVENTS, "s", 1, 3, 5, 9, "d", extra={"later": [1]}),
    CLONE: CopyRecord("c", CLONE, "s", 0, 3, 5, 9, "d", 2, 0, origin="file:///a"),
}
PIN = Pin(3, "file:///c", "f00", made=True, released_us=9, extra={"later": None})
ORIGIN = Origin("s", "file:///a", "c", 3, extra={"later": [1]})


@pytest.mark.parametrize("mode", RECORDS)
def test_record_comes_back_with_unknown_fields(mode):
    record = RECORDS[mode]
    assert parse_copy("c", to_json(record)) == record
    assert mode_of(to_json(record)) == mode


@pytest.mark.parametrize("mode", RECORDS)
def test_every_field_of_a_record_is_required(mode):
    value = to_json(RECORDS[mode])
    for name in value.keys() - {"later"}:
        with pytest.raises(CorruptionError, match="copy 'c'"):
            parse_copy("c", {key: item for key, item in value.items() if key != name})


def test_contradictions_are_damage():
    cloned, copied = to_json(RECORDS[CLONE]), to_json(RECORDS[SEGMENTS])
    for value in (
        {**copied, "end": 4},
        {**copied, "origin": "file:///a"},
        {**cloned, "mode": EVENTS},
    ):
        with pytest.raises(CorruptionError, match="contradicts"):
            parse_copy("c", value)
    with pytest.raises(CorruptionError, match="unknown mode"):
        parse_copy("c", {**copied, "mode": "m"})
    with pytest.raises(CorruptionError, match="copy 'c'"):
        parse_copy("c", None)


def test_record_that_is_no_object_has_no_mode():
    assert mode_of(3) == mode_of({"mode": 3}) == ""


def _pin(value):
    return from_json(Pin, value, where="pin 'c'")


def _origin(value):
    return from_json(Origin, value, where="origin 's'", stream_id="s")


def test_pin_and_origin_come_back_with_unknown_fields():
    assert _pin(to_json(PIN)) == PIN
    assert _pin({**to_json(PIN), "released_us": None}).released_us is None
    assert _origin(to_json(ORIGIN)) == ORIGIN


@pytest.mark.parametrize("name", ["version", "url", "clone_id", "made", "released_us"])
def test_damaged_pin_is_corrupt(name):
    for wrong in ({}, {name: -1.5}):
        value = {key: item for key, item in to_json(PIN).items() if key != name}
        with pytest.raises(CorruptionError, match="pin 'c'"):
            _pin(value | wrong)


@pytest.mark.parametrize("name", ["version", "url", "pin"])
def test_damaged_origin_is_corrupt(name):
    with pytest.raises(CorruptionError, match="origin 's'"):
        _origin({**to_json(ORIGIN), name: None})
