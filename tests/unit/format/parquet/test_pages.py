"""Page headers and dictionaries: what is read at a glance is what is read step by step."""

from contextlib import suppress
from itertools import chain

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore_ds.errors import CorruptionError
from segstore_ds.format.parquet import pages as parquet_pages
from segstore_ds.format.parquet.pages import DATA, DICTIONARY, PageHeader, read_header

ROWS = 3000
TABLE = pa.table(
    {
        "words": [f"word {n % 700}" for n in range(ROWS)],
        "texts": [f"{n:0200}" if n % 3 else None for n in range(ROWS)],
        "numbers": [n * 10**9 for n in range(ROWS)],
        "reals": [n / 7 if n % 5 else None for n in range(ROWS)],
        "truths": [n % 2 == 0 for n in range(ROWS)],
        "lists": [[n, None][: n % 3] for n in range(ROWS)],
        "nothing": pa.nulls(ROWS),
    }
)
WRITTEN = {
    "checked": {"write_page_checksum": True},
    "unchecked": {},
    "bare": {"write_statistics": False},
    "plain": {"use_dictionary": False, "write_page_checksum": True},
}


def write(**options: object) -> list[memoryview]:
    """Return the column chunks of the table as Parquet's writer lays them out."""
    sink = pa.BufferOutputStream()
    pq.write_table(TABLE, sink, compression="zstd", **options)
    data = memoryview(sink.getvalue())
    group = pq.read_metadata(pa.BufferReader(data)).row_group(0)
    chunks = []
    for number in range(group.num_columns):
        chunk = group.column(number)
        places = (chunk.dictionary_page_offset, chunk.data_page_offset)
        start = min(one for one in places if one is not None)
        chunks.append(data[start : start + chunk.total_compressed_size].cast("B"))
    return chunks


def headers(chunk: memoryview) -> list[bytes]:
    """Return the page headers of a column chunk."""
    found, place = [], 0
    while place < len(chunk):
        header = parquet_pages._read_any(chunk, place)
        found.append(bytes(chunk[place : header.end]))
        place = header.end + header.stored
    return found


HEADERS = sorted(set(chain.from_iterable(map(headers, write(**WRITTEN["checked"])))))
HEADERS += sorted(set(chain.from_iterable(map(headers, write(**WRITTEN["bare"])))))


@pytest.mark.parametrize("how", WRITTEN)
def test_headers_of_written_files_are_read_at_a_glance(how: str) -> None:
    """Whatever the column and the options; only texts too long to be skipped at once are not."""
    kinds = set()
    for header in chain.from_iterable(map(headers, write(**WRITTEN[how]))):
        slow = parquet_pages._read_any(memoryview(header), 0)
        kinds.add(slow.kind)
        quick = parquet_pages._read_alike(memoryview(header), 0)
        assert quick == slow or (quick is None and len(header) > 300)
        assert slow.end == len(header)
    assert kinds == ({DATA} if how == "plain" else {DATA, DICTIONARY})


# Fields of statistics, as Thrift lays them out: short ones, with a number of their own, long ones,
# and kinds that no statistics have.
FIELDS = [b"\x18\x02ab", b"\x28\x00", b"\x16\x04", b"\x16\x80\x80\x01", b"\x11", b"\x12"]
FIELDS += [b"\x08\x02\x02ab", b"\x01\x0a", b"\x01\x00", b"\x18\x80\x01" + bytes(128), b"\x13\x05"]
FIELDS += [b"\x15\x02", b"\x1c\x00", b"\x1c\x11\x00", b"\x00"]


def same_both_ways(view: memoryview) -> None:
    """Check that a glance tells the same or nothing."""
    with suppress(IndexError):
        quick = parquet_pages._read_alike(view, 0)
        if quick is not None:
            assert quick == parquet_pages._read_any(view, 0)


@given(
    st.sampled_from(HEADERS),
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 255)), max_size=3),
    st.integers(0, 400),
)
def test_damaged_headers_are_read_alike(header: bytes, changes: list, length: int) -> None:
    """Whichever byte of a header is another, and wherever it is cut."""
    damaged = bytearray(header + bytes(8))
    for place, value in changes:
        damaged[place % len(damaged)] = value
    same_both_ways(memoryview(damaged)[:length])


@given(st.lists(st.sampled_from(FIELDS), max_size=5), st.binary(max_size=3))
def test_statistics_are_skipped_alike(fields: list[bytes], more: bytes) -> None:
    """Whatever they hold, and whatever follows."""
    head = b"\x15\x00\x15\x0a\x15\x0a\x2c\x15\x0a\x15\x00\x15\x06\x15\x06\x1c"
    same_both_ways(memoryview(head + b"".join(fields) + bytes(3) + more))


@pytest.mark.parametrize("field", ["unpacked", "stored", "values"])
@pytest.mark.parametrize("checksum", [b"\x15\x02\x1c", b"\x2c"])
def test_numbers_below_nothing_are_refused(field: str, checksum: bytes) -> None:
    """Of either layout; the same header is read where they are not."""

    def lay_out(**lies: bytes) -> memoryview:
        sizes = [lies.get(name, b"\x0a") for name in ("unpacked", "stored", "values")]
        head = b"\x15\x00\x15" + sizes[0] + b"\x15" + sizes[1] + checksum + b"\x15" + sizes[2]
        return memoryview(head + b"\x15\x00\x15\x06\x15\x06\x00\x00")

    honest = lay_out()
    assert read_header(honest, 0, "x") == PageHeader(DATA, 5, 5, 5, len(honest))
    with pytest.raises(CorruptionError, match="header"):
        read_header(lay_out(**{field: b"\x09"}), 0, "x")


@given(st.binary(min_size=4, max_size=4), st.integers(0, 4))
def test_numbers_are_unfolded_alike(high: bytes, length: int) -> None:
    """Of any number of bytes that a glance takes."""
    varint = bytes(byte | 128 for byte in high[:length]) + bytes([high[0] & 127])
    number, end = parquet_pages._number(memoryview(varint), 0)
    assert (parquet_pages._unfold(varint), len(varint)) == (number, end)
