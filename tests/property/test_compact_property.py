"""Whatever is compacted, and whenever: the same events, offsets and order as a plain list."""

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_kit import SOFT, make_stream

from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

pytestmark = pytest.mark.slow

_TYPES = {
    "narrow": pa.schema([("n", pa.int32()), ("s", pa.string())]),
    "wide": pa.schema(
        [("n", pa.int64()), ("s", pa.string()), ("x", pa.list_(pa.struct([("y", pa.float64())])))]
    ),
}
_FORMATS = st.sampled_from(["arrow", "parquet", "auto"])
_OPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"),
            st.tuples(st.sampled_from([*_TYPES]), _FORMATS, st.sampled_from([0, 0, 200])),
            st.integers(1, 40),
        ),
        st.tuples(
            st.just("compact"), st.sampled_from(["merge", "stitch", "split"]), st.integers(1, 90)
        ),
        st.tuples(
            st.just("fill"),
            st.tuples(st.sampled_from(["merge", "split"]), _FORMATS, st.integers(1, 30)),
            st.integers(2_000, 40_000),
        ),
        st.tuples(st.just("minor"), st.integers(2, 4), st.integers(200, 20_000)),
        st.tuples(st.just("truncate"), st.just(0), st.integers(0, 60)),
    ),
    min_size=3,
    max_size=14,
)


def _events(kind: str, first: int, count: int, noise: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    draw = random.Random(first)
    for n in range(first, first + count):
        # Frames are told to be as large as others of as many rows, and are not.
        text = None if n % 5 == 0 else "x" * (n % 7) + draw.randbytes(noise).hex()
        row: dict[str, object] = {"n": None if n % 11 == 0 else n, "s": text}
        if kind == "wide":
            row["x"] = None if n % 3 == 0 else [{"y": n / 2}, None]
        rows.append(row)
    return rows


def _apply(stream: Stream, op: tuple, kept: list[dict[str, object]]) -> None:
    kind, choice, size = op
    if kind == "append":
        types, form, noise = choice
        rows = _events(types, stream.tail, size, noise)
        layout = Layout(
            inline_bytes=0, frame_rows=max(size // 3, 1), compression="lz4", segment_format=form
        )
        data = pa.Table.from_pylist(rows, _TYPES[types])
        stream.append(data, merge_schema=True, layout=layout)
        kept.extend(rows)
    elif kind == "compact":
        stream.compact(mode=choice, target_rows=size)
        assert stream.compact(mode=choice, target_rows=size).commits == 0
    elif kind == "fill":
        mode, form, frame_rows = choice
        layout = Layout(frame_rows=frame_rows, segment_format=form, compression="lz4")
        stream.compact(mode=mode, target_bytes=size, layout=layout)
        again = stream.compact(mode=mode, target_bytes=size, layout=layout)
        assert (again.commits, again.bytes_written) == (0, 0)
    elif kind == "minor":
        stream.compact(minor=(choice, choice), target_bytes=size)
    else:
        stream.truncate(min(stream.head + size, stream.tail))


@given(_OPS)
@settings(max_examples=settings.default.max_examples * 3 // 5)
def test_compaction_changes_no_answer(ops: list[tuple]) -> None:
    """Appends of two schemas, truncations and compactions in any order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SOFT, 3)
        stream, _ = make_stream(0)
        kept: list[dict[str, object]] = []
        for op in ops:
            _apply(stream, op, kept)
            table = stream.read(offset_column="o").read_all()
            assert table["o"].to_pylist() == list(range(stream.head, stream.tail))
            names = [name for name in table.schema.names if name != "o"]
            expected = [{name: row.get(name) for name in names} for row in kept[stream.head :]]
            assert table.drop_columns(["o"]).to_pylist() == expected
        stream.verify().check()


@given(
    st.lists(st.tuples(st.integers(10, 40), st.integers(5, 40)), min_size=1, max_size=3),
    st.sampled_from(["arrow", "parquet"]),
    st.sampled_from(["parquet", "auto", "arrow"]),
    st.integers(5, 30),
    st.sampled_from([100, 101, 70]),
)
@settings(max_examples=settings.default.max_examples * 3 // 5)
def test_what_was_merged_stays_as_it_is(
    appends: list[tuple[int, int]], appended: str, wanted: str, frame_rows: int, share: int
) -> None:
    """Frames of unequal width and a target that some segments fill: a second call is idle."""
    stream, _ = make_stream(0)
    for wide, narrow in appends:
        _apply(stream, ("append", ("narrow", appended, 2000), wide), [])
        _apply(stream, ("append", ("narrow", appended, 0), narrow), [])
    size = sum(entry.bytes for entry in stream._log.root.entries) * share // 100
    _apply(stream, ("fill", ("merge", wanted, frame_rows), size), [])
    assert stream.read().read_all().num_rows == sum(map(sum, appends))
