"""What is stored, what fits it, and how a batch is brought to it."""

import base64
import hashlib
import re
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import segstore_ds.format
from segstore_ds.errors import CorruptionError, InvalidInputError, SchemaMismatchError
from segstore_ds.format.schema.codec import (
    decode_schema,
    encode_schema,
    fingerprint,
    is_variant,
    normalise_schema,
)
from segstore_ds.format.schema.conversion import conform
from segstore_ds.format.schema.widening import plan_schema

VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
    ]
)
US, UTC = pa.timestamp("us"), pa.timestamp("us", "UTC")


def one(data_type, *, nullable=True, metadata=None):
    return pa.schema([pa.field("c", data_type, nullable=nullable, metadata=metadata)])


@pytest.mark.parametrize(
    ("incoming", "stored"),
    [
        (pa.uint8(), pa.int16()),
        (pa.uint16(), pa.int32()),
        (pa.uint32(), pa.int64()),
        (pa.uint64(), pa.decimal128(20, 0)),
        (pa.float16(), pa.float32()),
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary_view(), pa.binary()),
        (pa.binary(4), pa.binary()),
        (pa.date64(), pa.date32()),
        (pa.timestamp("ms", "Europe/Berlin"), UTC),
        (pa.timestamp("ns", "Europe/Berlin"), pa.timestamp("ns", "UTC")),
        (pa.timestamp("ns"), pa.timestamp("ns")),
        (pa.timestamp("s"), US),
        (pa.time32("ms"), pa.time64("ns")),
        (pa.duration("ns"), pa.duration("ns")),
        (pa.duration("s"), pa.duration("us")),
        (pa.decimal256(20, 3), pa.decimal128(20, 3)),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        (pa.large_list(pa.uint8()), pa.list_(pa.int16())),
        (pa.list_(pa.int8(), 3), pa.list_(pa.int8())),
        (pa.list_view(pa.int8()), pa.list_(pa.int8())),
        (pa.uuid(), pa.binary()),
        (pa.null(), pa.null()),
        (pa.struct([]), pa.struct([])),
    ],
    ids=str,
)
def test_every_type_has_one_stored_form(incoming, stored):
    normal = normalise_schema(one(incoming, nullable=incoming == pa.null()))
    assert normal.field("c").type == stored
    assert normal.field("c").nullable
    assert normalise_schema(normal).equals(normal, check_metadata=True)


@pytest.mark.parametrize(
    "refused",
    [
        pa.month_day_nano_interval(),
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.run_end_encoded(pa.int32(), pa.int8()),
        pa.decimal256(60, 2),
        pa.decimal128(5, -2),
        pa.list_(pa.month_day_nano_interval()),
        pa.struct([pa.field("x", pa.int8()), pa.field("x", pa.int8())]),
    ],
    ids=str,
)
def test_a_type_that_cannot_be_stored_is_refused_by_name(refused):
    with pytest.raises(InvalidInputError, match="'c"):
        normalise_schema(one(refused))


def test_duplicate_names_are_refused_also_when_only_case_differs():
    with pytest.raises(InvalidInputError, match="'a'"):
        normalise_schema(pa.schema([("a", pa.int8()), ("a", pa.int8())]))
    with pytest.raises(InvalidInputError, match="'User', 'user'"):
        normalise_schema(pa.schema([("User", pa.int8()), ("user", pa.int8())]))


def test_nested_fields_become_nullable_except_map_keys():
    nested = pa.struct(
        [
            pa.field("x", pa.int8(), nullable=False),
            pa.field("m", pa.map_(pa.string(), pa.field("value", pa.int8(), nullable=False))),
            pa.field("v", VARIANT, nullable=False),
        ]
    )
    stored = normalise_schema(one(nested)).field("c").type
    assert stored.field("x").nullable
    assert stored.field("m").type.item_field.nullable
    assert not stored.field("m").type.key_field.nullable
    assert stored.field("v").nullable
    assert is_variant(stored.field("v").type)
    assert not stored.field("v").type.field("value").nullable


def test_only_known_field_metadata_is_kept():
    metadata = {"SPARK::time::precision": "3", "PARQUET:field_id": "7"}
    stored = normalise_schema(one(pa.time64("ns"), metadata=metadata))
    assert stored.field("c").metadata == {b"SPARK::time::precision": b"3"}
    numbered = [field.with_metadata({**(field.metadata or {}), **metadata}) for field in VARIANT]
    value, marked = normalise_schema(one(pa.struct(numbered))).field("c").type
    assert value.metadata == {b"SPARK::time::precision": b"3"}
    assert marked.metadata == {b"SPARK::time::precision": b"3", b"variant": b"true"}


def test_text_form_comes_back_exactly():
    schema = normalise_schema(
        pa.schema([("v", VARIANT), ("t", UTC), ("d", pa.decimal128(38, 10)), ("n", pa.null())])
    )
    assert decode_schema(encode_schema(schema)).equals(schema, check_metadata=True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "???",
        "AAAA",
        base64.b64encode(b"\xff" * 200).decode(),
        encode_schema(one(pa.uint8())),
        encode_schema(one(pa.int8(), nullable=False)),
        encode_schema(pa.schema([("a", pa.int8()), ("a", pa.int8())])),
    ],
)
def test_a_text_that_is_no_stored_schema_is_corrupt(text):
    with pytest.raises(CorruptionError):
        decode_schema(text)


def test_fingerprint_depends_on_names_types_and_metadata_only():
    base = pa.schema([("a", pa.int8()), ("b", pa.list_(pa.string()))])
    assert fingerprint(base) == fingerprint(base.with_metadata({"x": "y"}))
    others = [
        pa.schema([("a", pa.int16()), ("b", pa.list_(pa.string()))]),
        pa.schema([("b", pa.list_(pa.string())), ("a", pa.int8())]),
        pa.schema([("a", pa.int8()), ("b", pa.list_(pa.binary()))]),
        pa.schema([pa.field("a", pa.int8(), metadata={"k": "v"}), ("b", pa.list_(pa.string()))]),
        pa.schema([("a", pa.int8()), ("b", pa.struct([("element", pa.string())]))]),
    ]
    assert len({fingerprint(schema) for schema in (base, *others)}) == 6


def test_fingerprints_are_those_of_the_format():
    """They are on disk; U+1E4D0 is printable to some interpreters and not to others."""
    text = (Path(segstore_ds.format.__file__).parent / "FORMAT.md").read_text(encoding="utf-8")
    vectors = re.findall(r"^\| `(\[.*\])` \| `([0-9a-f]{16})` \|$", text, re.MULTILINE)
    comment = {"comment": "größe"}
    schemas = [
        pa.schema([("n", pa.int64())]),
        pa.schema([("\U0001e4d0", pa.string()), ("t", UTC)]),
        pa.schema([pa.field("a", pa.list_(pa.int32()), metadata=comment)]),
    ]
    assert [expected for _, expected in vectors] == [
        fingerprint(normalise_schema(schema)) for schema in schemas
    ]
    for canonical, expected in vectors:
        digest = hashlib.blake2b(canonical.encode("ascii"), digest_size=16)
        assert digest.hexdigest()[:16] == expected


@pytest.mark.parametrize(
    ("current", "incoming"),
    [
        (pa.int64(), pa.int8()),
        (pa.int64(), pa.uint32()),
        (pa.float64(), pa.float32()),
        *[(pa.float64(), kind) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.uint16())],
        (pa.list_(pa.float64()), pa.list_(pa.int8())),
        (pa.decimal128(20, 4), pa.decimal128(10, 2)),
        (pa.string(), pa.null()),
        (pa.list_(pa.int64()), pa.list_(pa.int8())),
        (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int8())),
        (pa.struct([("x", pa.int64())]), pa.struct([("x", pa.int8())])),
        (UTC, pa.timestamp("us", "Asia/Tokyo")),
        (VARIANT, VARIANT),
    ],
    ids=str,
)
def test_narrower_data_fits_and_wider_data_needs_a_merge(current, incoming):
    stream, data = normalise_schema(one(current)), one(incoming)
    assert plan_schema(stream, data, merge=False) is stream
    assert plan_schema(stream, data, merge=True) is stream
    narrow = normalise_schema(data)
    if not narrow.equals(stream):
        with pytest.raises(SchemaMismatchError, match="merge_schema=True"):
            plan_schema(narrow, stream, merge=False)
        assert plan_schema(narrow, stream, merge=True).equals(stream)


@pytest.mark.parametrize(
    ("current", "incoming"),
    [
        (pa.int64(), pa.float32()),
        (pa.int64(), pa.uint64()),
        (pa.float64(), pa.int64()),
        (pa.float64(), pa.uint32()),
        (pa.float32(), pa.int8()),
        (pa.decimal128(20, 2), pa.int8()),
        (pa.float64(), pa.bool_()),
        (US, UTC),
        (UTC, US),
        (US, pa.date32()),
        (pa.string(), pa.binary()),
        (pa.decimal128(38, 0), pa.decimal128(38, 38)),
        (VARIANT, pa.struct([("value", pa.binary()), ("metadata", pa.binary())])),
        (pa.list_(pa.int8()), pa.int8()),
    ],
    ids=str,
)
def test_another_type_never_fits(current, incoming):
    with pytest.raises(SchemaMismatchError, match="'c"):
        plan_schema(normalise_schema(one(current)), one(incoming), merge=True)


def test_order_and_nullability_do_not_matter():
    stream = pa.schema([("a", pa.int64()), ("b", pa.string())])
    data = pa.schema([pa.field("b", pa.string(), nullable=False), pa.field("a", pa.int64())])
    assert plan_schema(stream, data, merge=False) is stream


def test_new_and_missing_columns_need_a_merge_that_appends():
    stream = pa.schema([("a", pa.int8()), ("b", pa.struct([("x", pa.int8())]))])
    data = pa.schema([("z", pa.int8()), ("b", pa.struct([("y", pa.int8())]))])
    with pytest.raises(SchemaMismatchError) as caught:
        plan_schema(stream, data, merge=False)
    text = str(caught.value)
    assert "z: int8" in text
    assert "missing_columns=['a']" in text
    assert "columns_with_missing_fields=['b']" in text
    assert "merge_schema=True" in text
    merged = plan_schema(stream, data, merge=True)
    assert merged.names == ["a", "b", "z"]
    assert merged.field("b").type == pa.struct([("x", pa.int8()), ("y", pa.int8())])
    assert plan_schema(stream, stream.remove(0), merge=True) is stream


def test_a_column_in_another_case_is_refused_even_with_a_merge():
    with pytest.raises(SchemaMismatchError, match="'User'"):
        plan_schema(
            one(pa.int8()).append(pa.field("user", pa.int8())),
            pa.schema([("c", pa.int8()), ("User", pa.int8())]),
            merge=True,
        )


def test_merging_widens_both_sides_of_a_decimal():
    merged = plan_schema(one(pa.decimal128(10, 2)), one(pa.decimal128(10, 6)), merge=True)
    assert merged.field("c").type == pa.decimal128(14, 6)


def nested_rows():
    incoming = pa.schema(
        [
            ("l", pa.large_list(pa.large_string())),
            ("m", pa.map_(pa.string(), pa.uint16())),
            ("s", pa.struct([pa.field("x", pa.uint8(), nullable=False), ("n", pa.null())])),
            ("t", pa.timestamp("ns", "Europe/Berlin")),
            ("d", pa.dictionary(pa.int8(), pa.string())),
            ("f", pa.list_(pa.uint8(), 2)),
            ("u", pa.uint64()),
        ]
    )
    rows = [
        {"l": ["a", None], "m": [("k", 1)], "s": {"x": 1, "n": None}, "t": 1000, "d": "p",
         "f": [1, 2], "u": 2**64 - 1},
        {"l": None, "m": None, "s": None, "t": None, "d": None, "f": None, "u": None},
        {"l": [], "m": [], "s": {"x": 255, "n": None}, "t": -5000, "d": "q", "f": [3, 4], "u": 0},
        {"l": ["b"], "m": [("k", None), ("j", 65535)], "s": {"x": 0, "n": None}, "t": 0, "d": "p",
         "f": [255, 0], "u": 1},
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, schema=incoming)


@pytest.mark.parametrize("start", [0, 1, 2, 3])
def test_conform_rebuilds_nested_columns_also_of_slices(start):
    whole = nested_rows()
    stored = normalise_schema(whole.schema)
    batch = whole.slice(start)
    result = conform(batch, stored)
    result.validate(full=True)
    assert result.schema.equals(stored, check_metadata=True)
    expected = batch.to_pylist()
    for row in expected:
        row["u"] = None if row["u"] is None else Decimal(row["u"])
    assert result.to_pylist() == expected


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1500], pa.timestamp("ns", "UTC")),
        pa.array([2**62], pa.timestamp("s", "UTC")),
    ],
    ids=str,
)
def test_a_value_that_would_be_lost_is_an_error(array):
    with pytest.raises(SchemaMismatchError, match="'c'"):
        conform(pa.record_batch({"c": array}), one(UTC))
