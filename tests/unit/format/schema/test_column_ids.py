"""Ids of columns: the same for whoever computes them, kept by wider types, stored by Parquet."""

import pyarrow as pa
import pyarrow.parquet as pq

from segstore_ds.format.parquet.writer import ParquetEncoder
from segstore_ds.format.schema.codec import fingerprint, normalise_schema
from segstore_ds.format.schema.column_names import column_id, with_column_ids

DEEP = pa.struct([("a", pa.int64()), ("tags", pa.list_(pa.string()))])
SCHEMA = normalise_schema(
    pa.schema([("n", pa.int64()), ("deep", DEEP), ("m", pa.map_(pa.string(), DEEP))])
)
PATHS = [
    ("n",),
    ("deep",),
    ("deep", "a"),
    ("deep", "tags"),
    ("deep", "tags", "element"),
    ("m",),
    ("m", "key"),
    ("m", "value"),
    ("m", "value", "a"),
    ("m", "value", "tags"),
    ("m", "value", "tags", "element"),
]


def test_every_nested_field_has_an_id() -> None:
    """Paths are unique, and so are their ids."""
    found = dict(_stored(with_column_ids(SCHEMA), ()))
    assert list(found) == PATHS
    assert len({*found.values()}) == len(PATHS)
    assert all(1 <= number < 1 << 31 for number in found.values())


def test_ids_do_not_change_with_versions() -> None:
    """What is in files has to stay."""
    assert column_id(("n",), pa.int64()) == 569_407_491
    assert column_id(("größe", "element"), pa.timestamp("us", "UTC")) == 1_982_967_409


def test_wider_type_keeps_the_id_and_another_kind_does_not() -> None:
    """A column that an overwrite gives another kind is another column to other engines."""
    number = column_id(("n",), pa.int8())
    assert column_id(("n",), pa.int64()) == number
    others = (pa.string(), pa.float64(), pa.timestamp("us"), pa.timestamp("us", "UTC"))
    assert len({number, *(column_id(("n",), kind) for kind in others)}) == 5


def test_ids_lie_outside_of_the_fingerprint_and_stay_in_the_file() -> None:
    """The file's own schema has them; the stored Arrow schema and what is read do not."""
    assert fingerprint(normalise_schema(with_column_ids(SCHEMA))) == fingerprint(SCHEMA)
    encoder = ParquetEncoder(SCHEMA, compression="none", compression_level=None, stats_columns=[])
    row = {"n": 1, "deep": {"a": 2, "tags": ["x"]}, "m": [("k", {"a": 3, "tags": []})]}
    batch = pa.RecordBatch.from_pylist([row], SCHEMA)
    data = encoder.start() + b"".join(encoder.add(batch)[0]) + encoder.finish()[0]
    file = pq.ParquetFile(pa.BufferReader(data))
    assert b"field_id" not in data
    assert dict(_stored(with_column_ids(SCHEMA), ())) == dict(_stored(file.schema_arrow, ()))


def _stored(fields: pa.Schema | pa.StructType, path: tuple[str, ...]):
    for field in fields:
        yield (*path, field.name), int(field.metadata[b"PARQUET:field_id"])
        kind = field.type
        if pa.types.is_map(kind):
            yield from _stored([kind.key_field, kind.item_field], (*path, field.name))
        elif pa.types.is_list(kind):
            yield from _stored([kind.value_field], (*path, field.name))
        elif pa.types.is_struct(kind):
            yield from _stored(kind, (*path, field.name))
