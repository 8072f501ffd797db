"""Page headers of Parquet, which Thrift's compact protocol writes. Pure.

Nearly all of them are laid out alike, which regular expressions read at a glance; any other is read
field by field. Both ways give the same: tests hold one against the other.
"""

import re
from typing import Any, NamedTuple

from segstore_ds.errors import CorruptionError

DATA, DICTIONARY = 0, 2  # On disk, by Parquet: kinds of pages.
_FACTS = {DATA: 5, DICTIONARY: 7}  # the field of a page header that tells of each kind
_STRUCT, _BINARY, _TRUE, _FALSE, _BYTE = 12, 8, 1, 2, 3  # On disk, by Thrift: kinds of fields.
_LONG = 6
_NUMBERS = (4, 5, _LONG)
_MOST_DEPTH = 4
# On disk, by Parquet: plain, dictionary (old and new), runs, delta binary packed. Others may
# stand for any number of bytes, and nothing here would count them.
_ENCODINGS = frozenset({0, 2, 3, 5, 8})
_WORD_ENCODINGS = frozenset({0, 2})
_LEVEL_ENCODINGS = frozenset({3})
_MOST_FIELDS = 1 << 15  # Thrift counts them in 16 bits, and begins anew
_VARINT = rb"[\x80-\xff]{0,4}[\x00-\x7f]"
# Size unpacked, size stored, at will a checksum; then how many values, and what else each kind has:
# three encodings, or one and whether words are sorted.
_SIZES = rb"\x15(%b)\x15(%b)(?:\x15%b" % ((_VARINT,) * 3)
_DATA_HEAD = re.compile(
    rb"\x15\x00%b\x1c|\x2c)\x15(%b)\x15[\x00\x04\x06\x0a\x10]\x15\x06\x15\x06" % (_SIZES, _VARINT)
)
_DICTIONARY_HEAD = re.compile(
    rb"\x15\x04%b\x3c|\x4c)\x15(%b)\x15[\x00\x04][\x11\x12]?\x00\x00" % (_SIZES, _VARINT)
)
_STATISTICS = 0x1C
_COUNT = re.compile(_VARINT)


class PageHeader(NamedTuple):
    """What a page header says.

    Attributes:
        kind: `DATA` or `DICTIONARY`.
        unpacked: How many bytes the page has, unpacked.
        stored: How many it takes here.
        values: How many values it holds.
        end: Where the header ends, and the page begins.
    """

    kind: int
    unpacked: int
    stored: int
    values: int
    end: int


def read_pages(data: memoryview, where: str) -> list[PageHeader]:
    """Read all the page headers of column chunks that lie side by side.

    Args:
        data: The chunks, whole.
        where: The frame, for errors.

    Raises:
        CorruptionError: A header is damaged, or a page is cut.
    """
    pages = []
    place = 0
    while place < len(data):
        page = read_header(data, place, where)
        pages.append(page)
        place = page.end + page.stored
    if place != len(data):
        raise CorruptionError("a page is cut", where=where)
    return pages


def read_header(data: memoryview, place: int, where: str) -> PageHeader:
    """Read a page header.

    Args:
        data: The pages of a column chunk.
        place: Where the header begins.
        where: The frame, for errors.

    Raises:
        CorruptionError: It is damaged, or of a kind that no segment has.
    """
    try:
        header = _read_alike(data, place) or _read_any(data, place)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise CorruptionError("a page header is damaged", where=where) from error
    least = min(header[1:])
    if least < 0:
        raise CorruptionError("a page header is damaged", where=where, least=least)
    return header


def _read_alike(data: memoryview, place: int) -> PageHeader | None:
    """Read a header that is laid out as most are, or give up."""
    kind, found = DATA, _DATA_HEAD.match(data, place)
    if found is not None:
        end = _skip_statistics(data, found.end())
        if end is None or bytes(data[end : end + 2]) != b"\x00\x00":
            return None
        end += 2
    else:
        kind, found = DICTIONARY, _DICTIONARY_HEAD.match(data, place)
        if found is None:
            return None
        end = found.end()
    unpacked, stored, values = map(_unfold, found.groups())
    return PageHeader(kind, unpacked, stored, values, end)


def _skip_statistics(data: memoryview, place: int) -> int | None:
    """Return where they end, if there are any; None if not seen at a glance."""
    if data[place] != _STATISTICS:
        return place
    place += 1
    # Fields whose numbers rise, so that none comes twice: texts, counts and truths.
    while (head := data[place]) and head > 15:
        kind = head & 15
        if kind == _BINARY and data[place + 1] < 128:
            place += 2 + data[place + 1]
        elif kind == _LONG and (count := _COUNT.match(data, place + 1)):
            place = count.end()
        elif kind in (_TRUE, _FALSE):
            place += 1
        else:
            return None
    return None if head else place + 1


def _unfold(varint: bytes) -> int:
    """Return the number that `_VARINT` found: seven bits of each byte, the sign in the lowest."""
    value = int.from_bytes(varint, "little")
    value = (
        value & 0x7F
        | value >> 1 & 0x3F80
        | value >> 2 & 0x1FC000
        | value >> 3 & 0xFE00000
        | value >> 4 & 0x7F0000000
    )
    return (value >> 1) ^ -(value & 1)


def _read_any(data: memoryview, place: int) -> PageHeader:
    fields, end = _struct(data, place, 0)
    kind = fields[1]
    facts = fields[_FACTS[kind]]
    if kind == DATA:
        known = facts[2] in _ENCODINGS and {facts[3], facts[4]} <= _LEVEL_ENCODINGS
    else:
        known = facts[2] in _WORD_ENCODINGS
    if not known:
        raise ValueError(facts)
    return PageHeader(kind, fields[2], fields[3], facts[1], end)


def _struct(data: memoryview, place: int, depth: int) -> tuple[dict[int, Any], int]:
    """Read a struct as Thrift's compact protocol writes it, of kinds that page headers have."""
    fields: dict[int, Any] = {}
    number = 0
    while head := data[place]:
        place += 1
        kind, step = head & 15, head >> 4
        if step:
            number += step
        else:
            number, place = _number(data, place)
        value: Any = None
        if kind in _NUMBERS:
            value, place = _number(data, place)
        elif kind == _BINARY:
            size, place = _varint(data, place)
            place += size
        elif kind == _STRUCT and depth < _MOST_DEPTH:
            value, place = _struct(data, place, depth + 1)
        elif kind == _BYTE:
            place += 1
        elif kind not in (_TRUE, _FALSE):
            raise ValueError(kind)
        if number in fields or not 0 < number < _MOST_FIELDS:
            raise ValueError(number)
        fields[number] = value
    return fields, place + 1


def _number(data: memoryview, place: int) -> tuple[int, int]:
    value, place = _varint(data, place)
    return (value >> 1) ^ -(value & 1), place


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        byte = data[place]
        value |= (byte & 127) << shift
        place += 1
        if byte < 128:
            return value, place
        shift += 7
    raise ValueError(value)
