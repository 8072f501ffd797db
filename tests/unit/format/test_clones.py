"""Pins and origins: what is stored comes back, unknown fields included; all else is damage."""

import pytest

from segstore_ds.errors import CorruptionError
from segstore_ds.format.clones import Origin, Pin
from segstore_ds.format.record import from_json, to_json

PIN = Pin(3, "file:///c", "f00", made=True, released_us=9, extra={"later": None})
ORIGIN = Origin("s", "file:///a", "c", 3, extra={"later": [1]})


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
