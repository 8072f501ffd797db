"""Names of columns and the names that they are stored under, also in a damaged root."""

import json

import pyarrow as pa
import pytest

from segstore_ds.errors import CorruptionError, InvalidInputError
from segstore_ds.format.schema.column_names import (
    change_columns,
    named_schema,
    names_of,
    store_columns,
    stored_names,
)
from segstore_ds.storage import open_storage
from segstore_ds.stream import opening
from segstore_ds.stream.connector.reads import open_snapshot

STORED = pa.schema([("a", pa.int64()), ("b", pa.string())])


def test_column_that_is_called_as_it_is_stored_needs_no_name() -> None:
    schema, names = change_columns(STORED, {}, {"a": "n"}, [])
    assert (schema, names) == (STORED, {"a": "n"})
    assert change_columns(schema, names, {"n": "a"}, []) == (STORED, {})


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


def test_name_that_another_column_has_is_refused() -> None:
    for rename in ({"a": "b"}, {"a": "B"}):
        with pytest.raises(InvalidInputError):
            change_columns(STORED, {}, rename, [])


@pytest.mark.parametrize("name", ["", 7, None, "\ud800"])
def test_what_no_column_can_be_called_is_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match="not a column name"):
        change_columns(STORED, {}, {"a": name}, [])


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
