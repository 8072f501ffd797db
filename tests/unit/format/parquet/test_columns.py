"""Some columns of a Parquet frame cost what they are, however many there are beside them."""

import pyarrow as pa
import pytest

from segstore_ds.format.parquet import segment
from segstore_ds.format.parquet.window import Window
from segstore_ds.format.parquet.writer import ParquetEncoder
from segstore_ds.format.segment import PARQUET, find_format

SPANS = [(4, 10), (10, 12), (20, 30)]
DATA = b"PAR1" + bytes(range(4, 40))


@pytest.fixture
def window() -> Window:
    """Ranges of an object: two side by side, one apart."""
    made = Window(len(DATA))
    made.show(SPANS, [pa.py_buffer(DATA[start:end]) for start, end in SPANS])
    return made


@pytest.mark.parametrize("start", range(41))
def test_a_window_shows_what_was_fetched_and_nothing_else(window: Window, start: int) -> None:
    """What reaches over the border of two ranges was not fetched as one."""
    for end in range(start + 1, 41):
        window.seek(start)
        if any(first <= start and end <= last for first, last in SPANS):
            assert window.read(end - start).to_pybytes() == DATA[start:end]
            assert window.tell() == end
        else:
            with pytest.raises(OSError, match=str(start)):
                window.read(end - start)
            assert window.tell() == start


def test_window_finds_a_range_among_many_in_few_steps() -> None:
    """A reader of thousands of columns must not look at every range for each of them."""
    looks = 0

    class Place(int):
        def __gt__(self, other: int) -> bool:
            nonlocal looks
            looks += 1
            return int(self) > other

    ranges = range(0, 30_000, 10)
    window = Window(30_000)
    data = pa.py_buffer(bytes(4))
    window.show([(Place(start), start + 4) for start in ranges], [data] * len(ranges))
    for start in ranges:
        window.seek(start)
        window.read(4)
    assert looks <= 12 * len(ranges)  # 2 ** 12 is more than the ranges


def test_every_second_column_reads_half_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is one range to fetch, to check and to find again: never all of them for each."""
    names = [f"c{number}" for number in range(3000)]
    values = pa.array(range(20))
    batch = pa.RecordBatch.from_arrays([values] * len(names), names)
    writer = ParquetEncoder(
        batch.schema, compression="none", compression_level=None, stats_columns=[]
    )
    whole = b"".join([writer.start(), b"".join(writer.add(batch)[0])])
    end, summary = writer.finish()
    whole += end
    index = find_format(PARQUET, where="w").parse_index(
        end, object_bytes=len(whole), where="w", footer_crc=summary.footer_crc
    )
    reads: list[int] = []

    class CountedWindow(Window):
        def read(self, count: int = -1) -> pa.Buffer:
            reads.append(count)
            return super().read(count)

    monkeypatch.setattr(segment, "Window", CountedWindow)

    def decode(columns: list[str] | None) -> tuple[int, int]:
        spans = index.spans(0, columns)
        assert len(spans) == (1500 if columns else 1)
        data = [pa.py_buffer(whole[first:last]) for first, last in spans]
        reads.clear()
        found = index.decode(0, data, schema=batch.schema, columns=columns, where="w")
        assert found.equals(batch.select(columns or names))
        return len(reads), sum(reads)

    decode(None)  # the first one of a segment may read more
    (every, every_bytes), (some, some_bytes) = decode(None), decode(names[::2])
    assert some <= every
    assert some_bytes <= 0.51 * every_bytes
