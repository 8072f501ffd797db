"""Filters of Parquet segments: Parquet's own, within their share, covered by the end's checksum."""

import random
import zlib
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from segstore_ds.errors import CorruptionError
from segstore_ds.format import bloom
from segstore_ds.format.parquet import filters as parquet_filters
from segstore_ds.format.parquet.writer import ParquetEncoder
from segstore_ds.format.segment import PARQUET, find_end, find_format

needs_writer = pytest.mark.skipif(not parquet_filters.CAN_WRITE, reason="from pyarrow 24 on")
FORM = find_format(PARQUET, where="x")
USERS = [f"user-{n % 100}" if n % 9 else None for n in range(4000)]
RANDOM = random.Random(3)
BATCH = pa.record_batch(
    {
        "pad": [RANDOM.randbytes(20) for _ in USERS],
        "a.b": pa.array([n % 90 for n in range(4000)], pa.int16()),
        "user": USERS,
        "flag": [n % 2 == 0 for n in range(4000)],
        "x": [n / 3 for n in range(4000)],
    }
)


def write(*keys: str) -> tuple[bytes, int]:
    """Return a segment of three frames with filters of the keys, and the length of its end."""
    writer = ParquetEncoder(
        BATCH.schema,
        compression="zstd",
        compression_level=None,
        stats_columns=[],
        key_columns=keys,
    )
    frames = (BATCH, BATCH.slice(0, 1000), BATCH.slice(3999))
    data = b"".join([writer.start(), *(b"".join(writer.add(frame)[0]) for frame in frames)])
    end, summary = writer.finish()
    assert summary.bytes == len(data + end)
    return data + end, len(end)


def open_index(data: bytes, end_bytes: int) -> Any:
    tail = data[len(data) - end_bytes :]
    return FORM.parse_index(tail, object_bytes=len(data), where="x", footer_crc=zlib.crc32(tail))


@needs_writer
def test_row_groups_have_filters_of_the_keys() -> None:
    data, end_bytes = write("user", "a.b", "flag", "x", "missing")
    frames = open_index(data, end_bytes).frames
    assert [set(frame.filters) for frame in frames] == [{"user", "a.b"}] * 3
    for name in ("user", "a.b"):
        assert not bloom.lacks_value([frames[0].filters[name]], BATCH.column(name))
        others = bloom.hash_values(pa.array([f"nobody-{n}" for n in range(2000)]))
        assert bloom.may_hold(frames[0].filters[name], others).mean() < 0.02
    hashes = bloom.hash_values(BATCH.column("user"))
    assert frames[0].filters["user"] == bloom.insert(hashes, len(frames[0].filters["user"]) // 32)


@needs_writer
def test_filters_stay_within_their_share() -> None:
    with_filters, _ = write("user", "a.b")
    without, _ = write()
    assert len(with_filters) < len(without) * 1.03 + 500  # names and places in the footer
    assert "pad" not in open_index(*write("pad")).frames[0].filters  # all values are different


@needs_writer
def test_end_is_found_without_an_entry() -> None:
    for keys in ((), ("user",)):
        data, end_bytes = write(*keys)
        found = find_end(FORM, lambda count, data=data: data[-count:], object_bytes=len(data))
        assert found == end_bytes


@needs_writer
def test_damage_of_a_filter_is_found_when_the_segment_is_opened() -> None:
    data, end_bytes = write("user")
    tail = data[-end_bytes:]
    crc = zlib.crc32(tail)
    for place in (0, 3, 20, 200):
        damaged = tail[:place] + bytes([tail[place] ^ 1]) + tail[place + 1 :]
        with pytest.raises(CorruptionError):
            FORM.parse_index(damaged, object_bytes=len(data), where="x", footer_crc=crc)


@needs_writer
@pytest.mark.parametrize("place", [0, 1, 2, 5, 12])
def test_unknown_header_of_a_filter_means_maybe(place: int) -> None:
    data, end_bytes = write("user")
    tail = bytearray(data[-end_bytes:])
    tail[place] ^= 0x40
    index = FORM.parse_index(
        bytes(tail), object_bytes=len(data), where="x", footer_crc=zlib.crc32(tail)
    )
    assert [set(frame.filters) for frame in index.frames] == [set(), {"user"}, {"user"}]


@needs_writer
def test_other_engines_use_the_filters(tmp_path: Any) -> None:
    data, _ = write("user")
    path = tmp_path / "x.parquet"
    path.write_bytes(data)
    probe = f"parquet_bloom_probe('{path}', 'user', "
    excluded = {
        name: [row[-1] for row in duckdb.sql(f"from {probe}'{name}')").fetchall()]
        for name in ("user-7", "user-nobody")
    }
    assert excluded == {"user-7": [False, False, True], "user-nobody": [True] * 3}
    assert pq.read_table(path).num_rows == 5001


def test_older_pyarrow_writes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_filters, "CAN_WRITE", False)
    data, end_bytes = write("user")
    assert not any(frame.filters for frame in open_index(data, end_bytes).frames)
