"""Records come back whole, keep what they don't know, and refuse what their types don't allow."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import pytest

from segstore_ds.errors import CorruptionError, UnsupportedVersionError
from segstore_ds.format.record import (
    ABSENT,
    MAX_INT,
    UNSTORED,
    Limit,
    Positive,
    Range,
    Row,
    build_json,
    encode_after,
    from_json,
    take_format,
    to_json,
)


@dataclass(frozen=True, slots=True)
class Point(Row):
    """Two numbers, of which the second is not below the first."""

    low: int
    high: Positive
    note: Annotated[Any, UNSTORED] = None

    def check_stored(self, where: str) -> None:
        """Raise CorruptionError if the numbers have no order."""
        if self.low > self.high:
            raise CorruptionError("point has no order", where=where)


def no_blank(text: str, *, where: str) -> None:
    """Refuse a text with a blank."""
    if " " in text:
        raise CorruptionError("text has a blank", where=where)


@dataclass(frozen=True, slots=True)
class Thing:
    """A field of every kind."""

    name: Annotated[str, UNSTORED]
    word: Annotated[str, Limit(3)]
    count: Annotated[int, Range(2, 5)]
    text: Annotated[str, Limit(3), no_blank]
    sure: bool
    point: Point | None
    points: tuple[Point, ...]
    numbers: Annotated[list[int], Range(most=9)]
    by_name: Mapping[str, Point]
    raw: Mapping[str, Any]
    anything: Any
    maybe: Annotated[int | None, ABSENT] = None
    more: Annotated[Mapping[str, Any], ABSENT] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


THING = Thing(
    "n", "ab", 3, "abc", True, Point(1, 2), (Point(0, 1),), [0, 9], {"p": Point(3, 3)},
    {"a": [1]}, None, 7, {"x": 1}, {"later": None},
)  # fmt: skip
VALUE = {
    "word": "ab", "count": 3, "text": "abc", "sure": True, "point": [1, 2], "points": [[0, 1]],
    "numbers": [0, 9], "by_name": {"p": [3, 3]}, "raw": {"a": [1]}, "anything": None, "maybe": 7,
    "more": {"x": 1}, "later": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Note(Row):
    """A row of a short text, which may be missing."""

    number: int
    text: Annotated[str, Limit(3)] | None


@pytest.mark.parametrize(
    "rows",
    [
        [[1, "abcd"]],
        [[1, "a"], [2, "abcd"]],
        [[1, 2]],
        [[1]],
        [7],
        [[True, "a"]],
        [[True, "abc"]],
        [[1.0, "abc"]],
        [[1, [2]]],
        [[-1, "a"]],
        [[MAX_INT + 1, "a"]],
        [[1, None], [MAX_INT + 1, None]],
    ],
)
def test_each_cell_of_rows_is_checked(rows: Any) -> None:
    """Types, bounds and lengths are checked in rows as in objects."""
    sound = [[0, None], [1, "abc"], [MAX_INT, ""]]
    found = from_json(tuple[Note, ...], sound, where="notes")
    assert found == (Note(0, None), Note(1, "abc"), Note(MAX_INT, ""))
    assert to_json(found, tuple[Note, ...]) == sound
    with pytest.raises(CorruptionError, match="notes"):
        from_json(tuple[Note, ...], [*sound, *rows], where="notes")


def parse(value: Any) -> Thing:
    """Return the thing that JSON holds."""
    return from_json(Thing, value, where="thing", name="n")


def test_record_comes_back_with_unknown_fields() -> None:
    """What is stored is the fields by name, and what a newer version added beside them."""
    assert to_json(THING) == VALUE
    assert parse(VALUE) == THING


def test_absent_field_is_left_out_and_may_be_missing() -> None:
    """None and an empty object are not written, and null is not a value of theirs."""
    bare = {name: item for name, item in VALUE.items() if name not in ("maybe", "more")}
    found = parse(bare)
    assert (found.maybe, found.more) == (None, {})
    assert to_json(found) == bare
    assert to_json(parse({**bare, "maybe": 0}))["maybe"] == 0
    with pytest.raises(CorruptionError, match="field='maybe'"):
        parse({**bare, "maybe": None})


@pytest.mark.parametrize("name", sorted(VALUE.keys() - {"maybe", "more", "later"}))
def test_missing_field_is_named(name: str) -> None:
    """Every other field has to be there."""
    with pytest.raises(CorruptionError, match=f"missing field: where='thing'.*field='{name}'"):
        parse({key: item for key, item in VALUE.items() if key != name})


WRONG: dict[str, list[Any]] = {
    "count": [1, 6, True, 3.0, "3", None, MAX_INT + 1],
    "text": ["abcd", "a b", 3, None, ["a"]],
    "sure": [0, 1, "true", None],
    "point": [[1], [2, 1], [0, 0], [True, 2], {}, "x", 3],
    "points": [None, {}, "x", [None], [[1]], [[1, 2], 3]],
    "numbers": [None, [10], [-1], [True], [1.0], ["1"], {}],
    "by_name": [None, [], {"p": None}, {"p": [1]}],
    "raw": [None, [], "x"],
    "maybe": ["1", -1],
    "more": [[], 1],
}


@pytest.mark.parametrize(
    ("name", "wrong"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_value_of_another_type_is_corrupt(name: str, wrong: Any) -> None:
    """An error says where it is, and names the field unless a row within it is wrong."""
    with pytest.raises(CorruptionError, match="where='thing'"):
        parse({**VALUE, name: wrong})


@pytest.mark.parametrize("value", [None, [], "x", 3])
def test_record_that_is_no_object_is_corrupt(value: Any) -> None:
    """Nothing else holds fields."""
    with pytest.raises(CorruptionError, match="not an object"):
        parse(value)


def test_newer_format_is_unsupported_before_fields_are_read() -> None:
    """It may have other fields."""
    assert take_format({"format": 1, "a": 2}, 1, what="thing", where="x") == {"a": 2}
    with pytest.raises(UnsupportedVersionError, match=r"thing has a newer format.*found=2"):
        take_format({"format": 2}, 1, what="thing", where="x")
    for wrong in ({}, {"format": 0}, {"format": "1"}, []):
        with pytest.raises(CorruptionError):
            take_format(wrong, 1, what="thing", where="x")


def test_new_is_what_is_not_the_same_object() -> None:
    """What was read back before is not again; an equal value of another type is new."""
    known, news = encode_after(THING, None, where="file")
    assert news.given.keys() == VALUE.keys() - {"later"}
    (old,), later = THING.points, Point(4, 5)
    for changes, given in (
        ({}, {}),
        ({"count": 4}, {"count": 4}),
        ({"points": (old, later)}, {"points": (later,)}),
        ({"points": (later, old)}, {"points": (later,)}),
        ({"points": ()}, {"points": ()}),
        ({"by_name": {**THING.by_name, "q": later}}, {"by_name": {"q": later}}),
        ({"maybe": 8}, {"maybe": 8}),
        ({"maybe": None}, {}),
        ({"extra": {"other": 2}}, {}),
    ):
        new = replace(THING, **changes)
        encoded, news = encode_after(new, known, where="file")
        assert (news.given, news.read) == (given, given)
        assert encoded.body == build_json(to_json(new))
        again, _ = encode_after(THING, encoded, where="file")
        assert again.body == known.body == build_json(to_json(THING))


@pytest.mark.parametrize("text", ['a"b', '"', "a\\", "a\nb", "", "é", "x1", "\x7f", "1 2", "٣"])
def test_any_text_is_encoded_as_in_the_whole(text: str) -> None:
    known, _ = encode_after(THING, None, where="file")
    encoded, news = encode_after(replace(THING, anything=text), known, where="file")
    assert news.read == {"anything": text}
    assert encoded.body == build_json(to_json(encoded.record))


@pytest.mark.parametrize(
    "wrong",
    [
        {"sure": 1},
        {"count": True},
        {"count": 6},
        {"word": "abcd"},
        {"points": (*THING.points, Point(5, 4))},
        {"points": (Point(0.0, 1),)},  # type: ignore[arg-type]  # equal to the old one
        {"by_name": {"p": Point(3, "3")}},  # type: ignore[arg-type]
        {"extra": {"x": float("inf")}},
    ],
)
def test_what_a_reader_would_reject_is_refused(wrong: Any) -> None:
    known, _ = encode_after(THING, None, where="file")
    for earlier in (known, None):
        with pytest.raises(CorruptionError):
            encode_after(replace(THING, **wrong), earlier, where="file")


def test_a_lone_surrogate_is_encoded_as_in_the_whole() -> None:
    """It makes all of the text ASCII, also what was encoded before."""
    known, _ = encode_after(replace(THING, anything="\u00e9"), None, where="file")
    new = replace(known.record, extra={"other": "\udce9"})
    encoded, _ = encode_after(new, known, where="file")
    assert encoded.body == build_json(to_json(new))
    assert encoded.body.isascii()


def test_row_that_was_read_before_is_the_same_object() -> None:
    """A root has most rows of the one before it; what is given to one row is not for the next."""
    first, again = (from_json(Note, [4, "b"], where="x") for _ in range(2))
    assert first is again
    assert from_json(Point, [1, 2], where="x") is not from_json(Point, [1, 2], where="x")
