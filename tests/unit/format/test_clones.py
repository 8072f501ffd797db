"""Pins and origins: what is stored comes back, unknown fields included; all else is damage."""

import pytest

from segstore_ds.errors import CorruptionError
from segstore_ds.format.clones import Origin, Pin, parse_origin, parse_pin

PIN = Pin(3, "file:///c", "f00", made=True, released_us=9, extra={"later": None})
ORIGIN = Origin("s", "file:///a", "c", 3, extra={"later": [1]})


def test_pin_and_origin_come_back_with_unknown_fields():
    assert parse_pin("c", PIN.to_value()) == PIN
    assert parse_pin("c", {**PIN.to_value(), "released_us": None}).released_us is None
    assert parse_origin("s", ORIGIN.to_value()) == ORIGIN


@pytest.mark.parametrize("name", ["version", "url", "clone_id", "made", "released_us"])
def test_damaged_pin_is_corrupt(name):
    for wrong in ({}, {name: -1.5}):
        value = {key: item for key, item in PIN.to_value().items() if key != name}
        with pytest.raises(CorruptionError, match="pin 'c'"):
            parse_pin("c", value | wrong)


@pytest.mark.parametrize("name", ["version", "url", "pin"])
def test_damaged_origin_is_corrupt(name):
    with pytest.raises(CorruptionError, match="origin 's'"):
        parse_origin("s", {**ORIGIN.to_value(), name: None})
