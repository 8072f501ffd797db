"""Names of columns, the names that they are stored under, and their ids in Parquet files."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from segstore_ds.errors import CorruptionError, InvalidInputError
from segstore_ds.format.parquet.writer import ParquetEncoder
from segstore_ds.format.schema.codec import fingerprint, normalise_schema
from segstore_ds.format.schema.column_names import (
    change_columns,
    column_id,
    named_schema,
    names_of,
    store_columns,
    stored_names,
    with_column_ids,
)
from segstore_ds.storage import open_storage
from segstore_ds.stream import opening
from segstore_ds.stream.connector.reads import open_snapshot

STORED = pa.schema([("a", pa.int64()), ("b", pa.string())])


def test_dropped_name_stays_taken_in_any_case() -> None:
    schema, names = change_columns(STORED, {}, {}, ["b"])
    assert (schema.names, names) == (["a"], {"b": None})
    wanted = pa.schema([("a", pa.int64()), ("B", pa.int64()), ("b-2", pa.int64())])
    stored = store_columns(wanted, schema, names)
    assert stored.names == ["a", "B-2", "b-2-2"]
    later = names_of(stored, wanted.names, names)
    assert later == {"B-2": "B", "b-2-2": "b-2", "b": None}
    assert named_schema(stored, later).equals(wanted)
    schema, names = change_columns(stored, later, {"B": "b"}, ["b-2"])
    assert names == {"B-2": "b", "b-2-2": None, "b": None}


def test_names_of_a_damaged_root_are_a_typed_error_or_passed_over() -> None:
    with pytest.raises(CorruptionError):
        named_schema(STORED, {"a": "b"})
    assert stored_names(STORED, {"gone": "a", "b": None}) == {}


def test_sparks_own_schema_follows() -> None:
    """Its types of columns that are there, under their names."""
    storage = open_storage("memory://names")
    fields = [
        {"name": name, "type": "varchar(9)", "nullable": True, "metadata": {}} for name in "ab"
    ]
    text = json.dumps({"type": "struct", "fields": fields})
    opening.create(storage, pa.schema([("a", pa.string()), ("b", pa.string())]), spark_schema=text)

    def spark() -> list[str] | None:
        found = open_snapshot(storage).spark_schema
        return None if found is None else [field["name"] for field in json.loads(found)["fields"]]

    opening.open(storage).change_schema(rename={"a": "b", "b": "c"})
    assert spark() == ["b", "c"]
    opening.open(storage).append({"b": "x", "c": "y", "n": 1}, merge_schema=True)
    assert spark() == ["b", "c"]
    opening.open(storage).change_schema(drop=["c"])
    assert spark() == ["b"]
    opening.open(storage).change_schema(drop=["b"])
    assert spark() is None


DEEP = pa.struct([("a", pa.int64()), ("tags", pa.list_(pa.string()))])
SCHEMA = normalise_schema(
    pa.schema([("n", pa.int64()), ("deep", DEEP), ("m", pa.map_(pa.string(), DEEP))])
)


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


@pytest.mark.parametrize("name", ["", 7, None, "\ud800"])
def test_what_no_column_can_be_called_is_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match="not a column name"):
        change_columns(STORED, {}, {"a": name}, [])
