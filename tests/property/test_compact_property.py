"""Whatever is compacted, and whenever: the same events, offsets and order as a plain list."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_kit import SOFT, make_stream

from segstore_ds.engine.staging import Layout
from segstore_ds.stream import Stream

_TYPES = {
    "narrow": pa.schema([("n", pa.int32()), ("s", pa.string())]),
    "wide": pa.schema(
        [("n", pa.int64()), ("s", pa.string()), ("x", pa.list_(pa.struct([("y", pa.float64())])))]
    ),
}
_OPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from([*_TYPES]), st.integers(1, 40)),
        st.tuples(
            st.just("compact"), st.sampled_from(["merge", "stitch", "split"]), st.integers(1, 90)
        ),
        st.tuples(st.just("minor"), st.integers(2, 4), st.integers(200, 20_000)),
        st.tuples(st.just("truncate"), st.just(0), st.integers(0, 60)),
    ),
    min_size=3,
    max_size=14,
)


def _events(kind: str, first: int, count: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for n in range(first, first + count):
        text = None if n % 5 == 0 else "x" * (n % 7)
        row: dict[str, object] = {"n": None if n % 11 == 0 else n, "s": text}
        if kind == "wide":
            row["x"] = None if n % 3 == 0 else [{"y": n / 2}, None]
        rows.append(row)
    return rows


def _apply(stream: Stream, op: tuple, kept: list[dict[str, object]]) -> None:
    kind, choice, size = op
    if kind == "append":
        rows = _events(choice, stream.tail, size)
        layout = Layout(inline_bytes=0, frame_rows=max(size // 3, 1), compression="lz4")
        data = pa.Table.from_pylist(rows, _TYPES[choice])
        stream.append(data, merge_schema=True, layout=layout)
        kept.extend(rows)
    elif kind == "compact":
        stream.compact(mode=choice, target_rows=size)
        assert stream.compact(mode=choice, target_rows=size).commits == 0
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
