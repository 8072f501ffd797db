"""Some columns of a Parquet frame cost what they are, however many there are beside them."""

import time

import pyarrow as pa
import pytest

from segstore_ds.format.parquet.window import Window
from segstore_ds.format.parquet.writer import ParquetEncoder
from segstore_ds.format.segment import FORMATS, PARQUET

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


def test_every_second_column_costs_about_half() -> None:
    """Each is one range to fetch, to check and to find again: never all of them for each."""
    names = [f"c{number}" for number in range(3000)]
    values = pa.array(range(20))
    batch = pa.RecordBatch.from_arrays([values] * len(names), names)
    writer = ParquetEncoder(
        batch.schema, compression="none", compression_level=None, stats_columns=[]
    )
    whole = b"".join([writer.start(), writer.add(batch)[0]])
    end, summary = writer.finish()
    whole += end
    index = FORMATS[PARQUET].parse_index(
        end, object_bytes=len(whole), where="w", footer_crc=summary.footer_crc
    )

    def decode(columns: list[str] | None) -> float:
        spans = index.spans(0, columns)
        assert len(spans) == (1500 if columns else 1)
        data = [pa.py_buffer(whole[first:last]) for first, last in spans]
        begun = time.process_time()
        found = index.decode(0, data, schema=batch.schema, columns=columns, where="w")
        taken = time.process_time() - begun
        assert found.equals(batch.select(columns or names))
        return taken

    decode(None)
    # As measured: 0.6; several times as much, when every range was looked at for every column.
    assert min(decode(names[::2]) for _ in range(3)) < 2 * min(decode(None) for _ in range(3))
