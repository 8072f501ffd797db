"""Metadata as JSON: canonical texts, and one codec between JSON values and dataclasses.

`from_json` checks every value by its type; anything unexpected is a CorruptionError that names the
field. The types of fields say:

- A dataclass is stored as an object of its fields, a `Row` as a list of them.
- Integers are from 0 to `MAX_INT` and texts have at most 2^24 characters, unless `Annotated` by a
  `Range` or a `Limit`. A function in `Annotated` checks the value further; it gets `where`.
- A field `extra` holds the unknown fields of an object, which are written again. Without it unknown
  fields are ignored, as are additional cells of a row.
- `UNSTORED` fields are given by the caller or have a default. An `ABSENT` field is left out while
  it is None or empty.

A class may have `check_stored`, which checks the fields against each other. The functions for a
class are built once and cached.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, lru_cache, partial
from itertools import compress, repeat
from operator import attrgetter, is_, is_not
from typing import Annotated, Any, TypeVar, get_args, get_origin

from segstore_ds.errors import CorruptionError, UnsupportedVersionError

MAX_INT = 2**63 - 1
MAX_TIME_US = 253_402_300_799_999_999  # the end of the year 9999, the last that Python can show

T = TypeVar("T")
_Load = Callable[..., Any]  # (value, where)
_Dump = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Range:
    """The integers that a field, or each item of a list, may be."""

    least: int = 0
    most: int = MAX_INT


@dataclass(frozen=True, slots=True)
class Limit:
    """The most characters of a text."""

    characters: int = 1 << 24


class Row:
    """A dataclass that is stored as the list of its fields, in order; unstored ones come last."""

    __slots__ = ()


ROWS_KNOWN = 1024  # cached rows per class, about a megabyte
UNSTORED = "unstored"
ABSENT = "absent"
_NOTHING: Mapping[str, Any] = {}
_EMPTY: tuple[Any, ...] = (None, {}, [])
_ATOMS = (int, str, bool)
Positive = Annotated[int, Range(1)]
TimeUs = Annotated[int, Range(most=MAX_TIME_US)]  # microseconds since 1970, before the year 10000


def from_json(kind: type[T], value: Any, *, where: str, **given: Any) -> T:
    """Return a JSON value as a value of a type, checked; `where` is its place, for errors.

    `given` are fields of a dataclass that are not in the JSON.

    >>> from_json(tuple[str, ...], ["a", "b"], where="properties")
    ('a', 'b')
    """
    load: Any = _loader(kind, "")  # type: ignore[arg-type]
    return load(value, where, given) if given else load(value, where)  # type: ignore[no-any-return]


def to_json(value: Any, kind: Any = None) -> Any:
    """Return the JSON value of a dataclass, or of another `kind`, for `from_json`."""
    dump = _dumper(kind or type(value))  # type: ignore[arg-type]
    return value if dump is None else dump(value)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A record, and the JSON of each of its fields as `"name":value`, in the order of names."""

    record: Any
    fields: Mapping[str, str]

    @property
    def body(self) -> bytes:
        """The canonical JSON of the record."""
        try:
            return f"{{{','.join(self.fields.values())}}}".encode()
        except UnicodeEncodeError:  # a lone surrogate, as in `build_json`
            return build_json(parse_json(f"{{{','.join(self.fields.values())}}}", where="record"))


@dataclass(frozen=True, slots=True)
class News:
    """What is new in a record's fields since an earlier one: as given, and as read back."""

    given: Mapping[str, Any]
    read: Mapping[str, Any]


def encode_after(
    record: Any, known: Encoded | None, *, where: str, **beside: Any
) -> tuple[Encoded, News]:
    """Encode a dataclass that shares most values with an earlier one, and read back what is new.

    In a tuple or a mapping only the items are new that are not the same objects as before. `beside`
    is stored in addition to the fields.
    """
    kind: Any = type(record)
    absent, loads, cells_of = _absent(kind), _loaders(kind), _cells_of(kind)
    found: dict[str, str] = {} if known is None else {**known.fields}
    cells, dumpers = cells_of(record), _dumpers(kind)
    olds = (None,) * len(cells) if known is None else cells_of(known.record)
    (atoms, are_within), plain = _atoms(kind), dict[str, Any]()
    given, texts = dict[str, Any](), dict[str, str]()
    fields: Iterable[tuple[str, Any, Any]] = zip(dumpers, cells, olds, strict=True)
    if known is not None:
        fields = compress(fields, map(is_not, cells, olds))  # most are the same objects as before
    for name, value, old in fields:
        if type(value) is type(old) in _ATOMS and value == old:
            continue
        number = type(value) is int
        word = type(value) is str and value.isascii() and value.isalnum()
        if (number or word) and atoms.get(name) is type(value):
            found[name] = f'"{name}":{value}' if number else f'"{name}":"{value}"'
            plain[name] = value  # its text reads back as the same value
        elif name in absent and value in _EMPTY:
            found.pop(name, None)
        else:
            text = found.get(name, "")
            made = _encode_new(name, dumpers[name], value, old, text)
            given[name], texts[name], found[name] = made
    if known is None or (_is_open(kind) and record.extra is not known.record.extra):
        extra = {**record.extra, **beside} if _is_open(kind) else beside
        more = [(name, _text_of(name)) for name in extra.keys() - loads.keys()]
        added = {name: f"{text}:{_text_of(extra[name])}" for name, text in more}
        kept = loads.keys() | extra.keys()
        found = {name: text for name, text in found.items() if name in kept} | added
        texts |= added
    parsed = parse_json(f"{{{','.join(texts.values())}}}", where=where)
    read = {name: loads[name](parsed[name], where) for name in given}
    for name in () if are_within(record) else plain:
        loads[name](plain[name], where)
    if known is None or found.keys() != known.fields.keys():
        found = dict(sorted(found.items()))
    return Encoded(record, found), News(plain | given, plain | read)


def _encode_new(
    name: str, dump: _Dump | None, value: Any, old: Any, text: str
) -> tuple[Any, str, str]:
    """Return what is new in a field's value, the JSON of that, and the JSON of the whole field."""
    part, grown = value, False
    if type(value) is tuple and old:
        part = value[len(old) :]
        grown = bool(part) and all(map(is_, value, old))  # most tuples grow at their end
        if not grown:
            same = {*map(id, old)}
            part = tuple([item for item in value if id(item) not in same])
    elif type(value) is dict and old:
        part = {key: item for key, item in value.items() if old.get(key) is not item}
    new = _text_of(part if dump is None else dump(part))
    if grown:
        return part, f'"{name}":{new}', f"{text[:-1]},{new[1:]}"
    whole = new if part is value else _text_of(value if dump is None else dump(value))
    return part, f'"{name}":{new}', f'"{name}":{whole}'


def take_format(value: Any, known: int, *, what: str, where: str) -> Mapping[str, Any]:
    """Return an object without its `format`; UnsupportedVersionError if that is newer."""
    found = from_json(_Format, value, where=where)
    if found.format > known:
        raise UnsupportedVersionError(
            f"{what} has a newer format", where=where, found=found.format, supported=known
        )
    return found.extra


@dataclass(frozen=True, slots=True)
class _Format:
    """The field that every versioned object has."""

    format: Positive
    extra: Mapping[str, Any]


def parse_json(body: bytes | str, *, where: str) -> Any:
    """Parse a JSON text from storage; invalid or too deeply nested text is a CorruptionError."""
    try:
        text = body if isinstance(body, str) else body.decode("utf-8", "surrogatepass")
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise CorruptionError("not valid JSON", where=where) from error


def _refuse_constant(name: str) -> None:
    # Python's parser accepts NaN and Infinity, which are not JSON.
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def build_json(value: Any) -> bytes:
    """Return the canonical JSON of a value: sorted keys, no spaces, UTF-8.

    A value from storage that is nested too deeply, or has a number too large for a float, raises
    CorruptionError.
    """
    try:
        return _text_of(value).encode()
    except UnicodeEncodeError:
        # A lone surrogate: UTF-8 can't hold it, but JSON can escape it.
        return _ASCII_ENCODER.encode(value).encode()


def _text_of(value: Any) -> str:
    try:
        return _ENCODER.encode(value)
    except RecursionError as error:
        raise CorruptionError("value is nested too deeply") from error
    except ValueError as error:
        raise CorruptionError("number is too large to be written") from error


_encoder_of = partial(
    json.JSONEncoder,
    sort_keys=True,
    separators=(",", ":"),
    allow_nan=False,
    check_circular=False,  # a cycle is a RecursionError anyway
)
_ENCODER, _ASCII_ENCODER = _encoder_of(ensure_ascii=False), _encoder_of(ensure_ascii=True)


def escape_text(value: Any) -> Any:
    r"""Return a text with its lone surrogates, which Arrow can't store, as backslash escapes.

    >>> escape_text("x\udce9"), escape_text(7)
    ('x\\udce9', 7)
    """
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def is_text(value: Any) -> bool:
    """Tell whether a value is a text without lone surrogates, which can be stored."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def is_type(kind: Any, plain: type) -> bool:
    """Tell whether the type of a field is `plain`, perhaps annotated."""
    return _notes(kind)[0] is plain


def _notes(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type without its annotations, and the annotations."""
    return (kind.__origin__, kind.__metadata__) if get_origin(kind) is Annotated else (kind, ())


@cache
def stored_fields(kind: Any) -> Mapping[str, Any]:
    """Return the types of the stored fields of a dataclass, by name."""
    found = {field.name: field.type for field in fields(kind) if field.name != "extra"}
    return {name: each for name, each in found.items() if UNSTORED not in _notes(each)[1]}


@cache
def _loaders(kind: Any) -> Mapping[str, _Load]:
    """Return the loader of each stored field of a dataclass."""
    return {name: _loader(each, name) for name, each in stored_fields(kind).items()}


@cache
def _cells_of(kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    """Return a getter of the stored fields of a dataclass, in the order of names."""
    return attrgetter(*_dumpers(kind))


@cache
def _absent(kind: Any) -> frozenset[str]:
    """Return the names of the fields of a dataclass that are left out when they are empty."""
    return frozenset(
        name for name, each in stored_fields(kind).items() if ABSENT in _notes(each)[1]
    )


@cache
def _is_open(kind: Any) -> bool:
    return any(field.name == "extra" for field in fields(kind))


@cache
def _loader(kind: Any, name: str) -> _Load:
    """Return the loader of a type, which checks a value; `name` is its field, for errors."""
    kind, notes = _notes(kind)
    told = {type(note): note for note in notes}
    if kind is int:
        load = _integer(told.get(Range, Range()), name)
    elif kind is str:
        load = _text(told.get(Limit, Limit()).characters, name)
    elif kind == list[int]:
        load = _integers(told.get(Range, Range()), name)
    else:
        load = _composed(kind, name)
    for check in (*notes, getattr(kind, "check_stored", None)):
        load = _checked(load, check) if callable(check) else load
    return load


def _composed(kind: Any, name: str) -> _Load:
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value, _where: value
    if kind is bool:
        return _tested(lambda value: type(value) is bool, "a boolean", name)
    if origin in (tuple, list):
        return _items(origin, args[0], name)
    if origin in (dict, Mapping):
        return _values(args[1], name)
    if type(None) in args:
        inner = _loader(args[0], name)
        return lambda value, where: None if value is None else inner(value, where)
    return (_row if issubclass(kind, Row) else _object)(kind)


def _checked(load: _Load, check: Callable[..., Any]) -> _Load:
    def loaded(value: Any, where: str, *given: Any) -> Any:
        found = load(value, where, *given)
        check(found, where=where)
        return found

    return loaded


def _wrong(where: str, name: str, expected: str) -> CorruptionError:
    return CorruptionError("field has an invalid value", where=where, field=name, expected=expected)


def _tested(fits: Callable[[Any], bool], expected: str, name: str) -> _Load:
    def load(value: Any, where: str) -> Any:
        if fits(value):
            return value
        raise _wrong(where, name, expected)

    return load


def _integer(bounds: Range, name: str) -> _Load:
    least, most = bounds.least, bounds.most

    def load(value: Any, where: str) -> Any:  # not by `_tested`: roots have hundreds of integers
        if type(value) is int and least <= value <= most:
            return value
        raise _wrong(where, name, f"an integer from {least} to {most}")

    return load


def _integers(bounds: Range, name: str) -> _Load:
    least, most = bounds.least, bounds.most

    def fits(value: Any) -> bool:
        # Loops in C, because this is much of the time to open a small segment.
        integers = type(value) is list and set(map(type, value)) <= {int}
        return integers and (not value or least <= min(value) <= max(value) <= most)

    return _tested(fits, f"a list of integers from {least} to {most}", name)


def _text(most: int, name: str) -> _Load:
    def load(value: Any, where: str) -> Any:
        if type(value) is str and len(value) <= most:
            return value
        raise _wrong(where, name, f"a string of at most {most} characters")

    return load


def _items(kind: Any, each: Any, name: str) -> _Load:
    item = _loader(each, name)

    def load(value: Any, where: str) -> Any:
        if type(value) is not list:
            raise _wrong(where, name, "a list")
        return kind(map(item, value, repeat(where))) if value else kind()

    return load


def _values(kind: Any, name: str) -> _Load:
    item = None if kind is Any else _loader(kind, name)

    def load(value: Any, where: str) -> Any:
        if type(value) is not dict:
            raise _wrong(where, name, "an object")
        return {key: item(each, where) for key, each in value.items()} if item and value else value

    return load


def _row(kind: Any) -> _Load:
    stored = stored_fields(kind)
    columns, loads = tuple(stored), [*_loaders(kind).values()]
    tests = [_plain_test(each, f"row[{place}]") for place, each in enumerate(stored.values())]
    are_plain = _all_of(filter(None, tests))
    checks = [
        (place, check)
        for place, each in enumerate(stored.values())
        for check in (_checks_of(each) if tests[place] else ())
    ]
    others = [(place, loads[place]) for place, test in enumerate(tests) if not test]

    def load(value: Any, where: str) -> Any:
        if type(value) is not list or len(value) < len(loads):
            raise CorruptionError("not a row", where=where, columns=columns)
        if not are_plain(value):
            return kind(*[load(cell, where) for load, cell in zip(loads, value, strict=False)])
        for place, check in checks:
            if value[place] is not None:
                check(value[place], where=where)
        cells = value[: len(loads)]
        for place, other in others:
            cells[place] = other(cells[place], where)
        return kind(*cells)

    if others or len(stored) < len(fields(kind)):
        return load  # its unstored fields are set later, so records can't be shared
    # Cached, as a root has most rows of the one before. `typed`, because True is not 1 here.
    known = lru_cache(ROWS_KNOWN, typed=True)(lambda *cells: load([*cells], ""))

    def load_known(value: Any, where: str) -> Any:
        try:
            return known(*value) if type(value) is list else load(value, where)
        except (CorruptionError, TypeError):
            return load(value, where)  # raises with `where`

    return load_known


def _checks_of(kind: Any) -> list[Callable[..., Any]]:
    """Return the functions that check the values of a type further."""
    plain, notes = _notes(kind)
    inner = _checks_of(get_args(plain)[0]) if type(None) in get_args(plain) else []
    return [*filter(callable, notes), *inner]


def _all_of(tests: Iterable[str]) -> Callable[[Any], bool]:
    """Return a function that tells whether all cells of a `row` pass their tests.

    It is one expression: roots have hundreds of cells, and a call for each would take longer.
    """
    # Safe: the code is made of the types of our own fields, as dataclasses do it.
    found: Callable[[Any], bool] = eval(f"lambda row: {' and '.join(tests) or True}")  # noqa: S307
    return found


def _plain_test(kind: Any, cell: str) -> str | None:
    """Return a test of a cell as code; None if its type is neither int nor str."""
    kind, notes = _notes(kind)
    if type(None) in get_args(kind):
        test = _plain_test(get_args(kind)[0], cell)
        return test and f"({cell} is None or {test})"
    if kind not in (int, str):
        return None
    return f"type({cell}) is {kind.__name__} and {_range_test(kind, notes, cell)}"


def _range_test(kind: Any, notes: Iterable[Any], cell: str) -> str:
    """Return a test of an integer's range or a text's length as code."""
    told = {type(note): note for note in notes}
    bounds, limit = told.get(Range, Range()), told.get(Limit, Limit())
    size = f"len({cell}) <= {limit.characters}"
    return f"{bounds.least} <= {cell} <= {bounds.most}" if kind is int else size


def _plain_fields(kind: Any) -> Mapping[str, Any]:
    """Return the types of the fields that are plain integers or texts."""
    return {
        name: each
        for name, each in stored_fields(kind).items()
        if not (_checks_of(each) or ABSENT in _notes(each)[1]) and _plain_test(each, "")
    }


@cache
def _atoms(kind: Any) -> tuple[Mapping[str, type], Callable[[Any], bool]]:
    """Return the types of the fields that are never None, and a test of a record's values."""
    found = {name: _notes(each) for name, each in _plain_fields(kind).items()}
    found = {name: (plain, notes) for name, (plain, notes) in found.items() if plain in _ATOMS}
    tests = [_range_test(*each, f"row.{name}") for name, each in found.items()]
    return {name: plain for name, (plain, _) in found.items()}, _all_of(tests)


def _object(kind: Any) -> _Load:
    stored = stored_fields(kind)
    loads = [(name, *_absence(each, name)) for name, each in stored.items()]
    plain = _plain_fields(kind).items()
    tests = {name: _plain_test(each, f"row[{name!r}]") or "" for name, each in plain}
    are_plain = _all_of(tests.values())
    others = [each for each in loads if each[0] not in tests]
    is_open = _is_open(kind)

    def load(value: Any, where: str, given: Mapping[str, Any] = _NOTHING) -> Any:
        if type(value) is not dict:
            raise CorruptionError("not an object", where=where)
        found, left = dict(given), loads
        if not given and value.keys() >= tests.keys() and are_plain(value):
            found.update(zip(tests, map(value.__getitem__, tests), strict=True))
            left = others
        for name, check, empty in left:
            if name in given:
                continue
            if name in value:
                found[name] = check(value[name], where)
            elif empty is not None:
                found[name] = empty()
            else:
                raise CorruptionError("missing field", where=where, field=name)
        if is_open:
            found["extra"] = {name: value[name] for name in value if name not in stored}
        return kind(**found)

    return load


def _absence(kind: Any, name: str) -> tuple[_Load, Callable[[], Any] | None]:
    """Return the loader of a field, and what makes its value if it may be missing."""
    plain, notes = _notes(kind)
    if ABSENT not in notes:
        return _loader(kind, name), None
    inner, *rest = get_args(plain)
    if type(None) in rest:
        return _loader(inner, name), type(None)
    return _loader(plain, name), list if get_origin(plain) is list else dict


@cache
def _dumper(kind: Any) -> _Dump | None:
    """Return a function that makes JSON of a type's values; None if they are JSON already."""
    kind, _ = _notes(kind)
    if is_dataclass(kind):
        return _dumper_of(kind)
    args, keyed = get_args(kind), get_origin(kind) in (dict, Mapping)
    item = next((found for each in args if (found := _dumper(each))), None)
    cells = getattr(item, "cells", None)
    if cells is not None and get_origin(kind) in (tuple, list):
        return lambda value: [*map(list, map(cells, value))]
    if item is None:
        return dict if keyed else None
    if keyed:
        return lambda value: {name: item(each) for name, each in value.items()}
    if type(None) in args:
        return lambda value: None if value is None else item(value)
    return lambda value: [*map(item, value)]


@cache
def _dumpers(kind: Any) -> Mapping[str, _Dump | None]:
    """Return the dumper of each stored field of a dataclass, in the order of names."""
    return {name: _dumper(each) for name, each in sorted(stored_fields(kind).items())}


def _dumper_of(kind: Any) -> _Dump:
    stored = stored_fields(kind)
    cells: Callable[[Any], Iterable[Any]] = attrgetter(*stored)
    dumps = _dumpers(kind)
    inner = [(place, dump) for place, name in enumerate(stored) if (dump := dumps[name])]
    absent, is_open = _absent(kind), _is_open(kind)

    def dump_row(record: Any) -> list[Any]:
        found = [*cells(record)]
        for place, dump in inner:
            found[place] = dump(found[place])
        return found

    def dump_object(record: Any) -> dict[str, Any]:
        value = dict(record.extra) if is_open else {}
        value.update(zip(stored, dump_row(record), strict=True))
        for name in absent:
            if value[name] in _EMPTY:
                del value[name]
        return value

    if not issubclass(kind, Row):
        return dump_object
    if not inner and len(stored) > 1:
        dump_row.cells = cells  # type: ignore[attr-defined]  # to dump many rows by loops in C
    return dump_row
