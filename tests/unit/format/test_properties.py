"""Properties that name columns, and records of copies: what is asked of them, and carried on."""

from dataclasses import replace

import pytest

from segstore_ds.errors import CorruptionError, InvalidInputError
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
from segstore_ds.format.properties import (
    PROPERTIES,
    follow_columns,
    inherited_properties,
    refuse_needed,
)
from segstore_ds.format.record import from_json, to_json
from segstore_ds.format.root import Epoch, Kept, Root, Tag

ROOT = Root("s", 0, "t0", "", 1, "create", (Epoch(0, 0, "x", None),))
NEED_A = [
    ("time_column", '"a"'),
    ("key_columns", '["k","a"]'),
    ("expiry", '[{"age_s":60,"column":"a"}]'),
    ("latest", '{"formats":["delta"],"key":["a"],"tombstone":null}'),
    ("latest", '{"formats":[],"key":["k"],"tombstone":"a"}'),
]


@pytest.mark.parametrize(("name", "text"), NEED_A)
def test_needed_column_is_not_dropped(name: str, text: str) -> None:
    """Columns are dropped by the names that callers see."""
    root = replace(ROOT, properties={name: text})
    refuse_needed(root, ["b"])
    with pytest.raises(InvalidInputError) as caught:
        refuse_needed(root, ["a"])
    assert caught.value.fields["setting"] == name
    called = replace(root, epochs=(Epoch(0, 0, "x", None, names={"a": "z"}),))
    refuse_needed(called, ["a"])
    with pytest.raises(InvalidInputError):
        refuse_needed(called, ["z"])


@pytest.mark.parametrize(("name", "text"), NEED_A)
def test_property_takes_the_column_of_the_same_name(name: str, text: str) -> None:
    before, after = {"a": "a", "k": "k"}, {"a-2": "a", "k": "k"}
    followed = follow_columns({name: text, "retention": "{}"}, before, after)
    assert followed == {name: text.replace('"a"', '"a-2"'), "retention": "{}"}


def test_column_is_not_dropped_while_a_property_cannot_be_read() -> None:
    with pytest.raises(CorruptionError):
        refuse_needed(replace(ROOT, properties={"expiry": "oops"}), ["a"])


def test_copies_have_what_says_how_events_are_found() -> None:
    root = replace(ROOT, properties={**dict(NEED_A), "retention": "{}", "publish": '["delta"]'})
    assert inherited_properties(root) == dict(NEED_A[:2])
    renamed = {"time_column": '"z"', "key_columns": '["k","z"]'}
    assert inherited_properties(root, {"a": "z", "b": None}) == renamed


def test_rules_of_expiry_are_refused_where_tags_keep_versions() -> None:
    kept = replace(ROOT, tags={"v": Tag(0, 0, 1)}, kept={"v": Kept(0, 1, None)})
    refused = set()
    for each in PROPERTIES:
        each.refuse(ROOT)
        try:
            each.refuse(kept)
        except InvalidInputError:
            refused.add(each.name)
    assert refused == {"expiry"}


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


def test_pin_and_origin_come_back_with_unknown_fields():
    for pin in (PIN, replace(PIN, released_us=None)):
        assert from_json(Pin, to_json(pin), where="pin 'c'") == pin
    assert from_json(Origin, to_json(ORIGIN), where="origin 's'", stream_id="s") == ORIGIN
