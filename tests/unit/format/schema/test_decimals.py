"""Decimals of more digits than their type are refused where they come in, wherever they lie."""

import uuid
from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pytest

from segstore_ds.errors import InvalidInputError, SchemaMismatchError
from segstore_ds.format.parquet.writer import ParquetEncoder
from segstore_ds.format.schema import conversion
from segstore_ds.format.schema.conversion import conform, find_overlong
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.write.layout import Layout

TYPE = pa.decimal128(9, 2)
INTS, ENDS = pa.int64(), pa.int32()


def overlong(digits: int = 12, data_type: pa.DataType = TYPE, *, nulls: bool = False) -> pa.Array:
    """Return four values of so many digits, which the type has no room for; null on request."""
    raw = b"".join((10 ** (digits - 1) + n).to_bytes(16, "little") for n in range(4))
    validity = pa.py_buffer(bytes(1)) if nulls else None
    return pa.Array.from_buffers(data_type, 4, [validity, pa.py_buffer(raw)])


def in_struct(leaf: pa.Array, *, null: bool = False) -> pa.Array:
    mask = pa.array([null] * len(leaf))
    return pa.StructArray.from_arrays([pa.array(range(len(leaf))), leaf], ["n", "d"], mask=mask)


def in_list(leaf: pa.Array, *, null: bool = False) -> pa.Array:
    return _repeated(pa.list_(leaf.type), leaf, null=null)


def in_map(leaf: pa.Array, *, null: bool = False) -> pa.Array:
    data_type = pa.map_(INTS, leaf.type)
    entries = pa.StructArray.from_arrays(
        [pa.array(range(len(leaf))), leaf], fields=[data_type.key_field, data_type.item_field]
    )
    return _repeated(data_type, entries, null=null)


def _repeated(data_type: pa.DataType, child: pa.Array, *, null: bool) -> pa.Array:
    """Two rows of which the first has all values, or is null and has them below."""
    ends = pa.array([0, len(child), len(child)], ENDS).buffers()[1]
    validity = pa.py_buffer(b"\2") if null else None
    return pa.Array.from_buffers(data_type, 2, [validity, ends], children=[child])


NESTED = [
    in_struct,
    in_list,
    in_map,
    lambda leaf, **null: in_list(in_struct(leaf, **null)),
    lambda leaf, **null: in_struct(in_list(leaf, **null)),
    lambda leaf, **null: in_map(in_list(leaf), **null),
]
PATHS = ["c.d", "c.element", "c.value", "c.element.d", "c.d.element", "c.value.element"]


def batch_of(column: pa.Array) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(len(column))), "c": column})


@pytest.mark.parametrize(("nest", "path"), list(zip(NESTED, PATHS, strict=True)))
def test_nested_overlong_decimals_are_found(nest: Callable[..., pa.Array], path: str) -> None:
    """With the path of the leaf; not if they are null or inside a null."""
    batch = batch_of(nest(overlong()))
    assert find_overlong(batch, [1]) == path
    assert find_overlong(batch.slice(0, 1), [1]) == path
    assert find_overlong(batch_of(nest(overlong(nulls=True))), [1]) is None
    assert find_overlong(batch_of(nest(overlong(), null=True)), [1]) is None
    sound = pa.array([Decimal("1234567.89"), None, Decimal("-9999999.99"), Decimal(0)], TYPE)
    batch = batch_of(nest(sound))
    assert find_overlong(batch, [1]) is None
    assert conform(batch, batch.schema) is batch


def test_rows_that_were_cut_off_do_not_count() -> None:
    """A slice is what it shows."""
    rows = pa.concat_arrays([pa.array([Decimal(1)] * 4, TYPE), overlong()])
    assert find_overlong(batch_of(rows).slice(0, 4), [1]) is None
    assert find_overlong(batch_of(rows).slice(3, 2), [1]) == "c"
    lists = pa.concat_arrays([in_list(overlong()), in_list(pa.array([Decimal(1)], TYPE))])
    assert find_overlong(batch_of(lists).slice(1, 3), [1]) is None


def test_incoming_data_is_refused_by_name() -> None:
    """Whether a column is of the stored type already or has to be brought to it."""
    batch = batch_of(overlong())
    for schema in (batch.schema, pa.schema([("c", TYPE), ("n", INTS)])):
        with pytest.raises(SchemaMismatchError, match=r"more digits than its type.*column='c'"):
            conform(batch, schema)
    wider = pa.schema([("n", INTS), ("c", pa.decimal128(20, 2))])
    assert conform(batch, wider)["c"][0].as_py() == Decimal(10**11) / 100


def test_parquet_writer_refuses_overlong_decimals_first() -> None:
    """So that the segment can go on with other rows."""
    sound = batch_of(pa.array([Decimal(1)] * 4, TYPE))
    writer = ParquetEncoder(
        sound.schema, compression="zstd", compression_level=None, stats_columns=[]
    )
    writer.start()
    writer.add(sound)
    with pytest.raises(InvalidInputError, match=r"more digits than its type.*column='c'"):
        writer.add(batch_of(overlong()))
    assert not writer.is_broken
    writer.add(sound)
    _, summary = writer.finish()
    assert summary.rows == 8


@pytest.mark.parametrize(("digits", "precision"), [(12, 9), (38, 20), (38, 37)])
def test_appends_refuse_and_merges_keep_overlong_decimals(
    digits: int, precision: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value in an Arrow segment is the same after every compaction."""
    data_type = pa.decimal128(precision, 2)
    bad = pa.table([overlong(digits, data_type)], names=["c"])
    for wanted in ("arrow", "parquet", "auto"):
        layout = Layout(inline_bytes=0, frame_rows=2, segment_format=wanted)
        stream = create_on(open_storage(f"memory://{uuid.uuid4().hex}"), bad.schema)
        with pytest.raises(InvalidInputError, match="more digits"):
            stream.append(bad, layout=layout)
        assert stream.refresh().tail == 0
        with monkeypatch.context() as patch:
            patch.setattr(conversion, "find_overlong", lambda *_: None)
            for _ in range(3):
                stream.append(bad, layout=Layout(inline_bytes=0, segment_format="arrow"))
        before = stream.read().read_all()
        assert stream.compact(layout=layout).segments_after == 1
        assert [entry.format for entry in stream._log.root.entries] == ["arrow"]
        assert stream.read().read_all() == before
        assert stream.compact(layout=layout).commits == 0
        good = pa.table({"c": pa.array([Decimal(1)] * 4, data_type)})
        stream.append(good, layout=layout, compact="auto")
        assert stream.compact(layout=layout).segments_after == 1
        assert stream.read(0, 12).read_all() == before
        stream.verify().check()
