"""Wrong arguments are named at the call, whichever call of the Python API it is."""

import math
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from stream_kit import snapshot

import segstore_ds as segstore
from segstore_ds.errors import CorruptionError, InvalidInputError, SchemaMismatchError
from segstore_ds.format.schema.codec import decode_schema, encode_schema
from segstore_ds.storage import open_storage

TABLE = pa.table({"n": [1, 2, 3]})
NO_NUMBERS: list[Any] = [-1, 1.5, True, "5", math.nan, math.inf, 2**64, [], np.float64(1)]
SIZES = ("frame_rows", "segment_rows", "segment_bytes")


def new(schema: pa.Schema = TABLE.schema) -> segstore.Stream:
    """Return an empty stream."""
    return segstore.create(f"memory://{uuid.uuid4().hex}", schema)


@pytest.fixture
def stream() -> segstore.Stream:
    """A stream of three events."""
    made = new()
    made.append(TABLE)
    return made


@pytest.mark.parametrize("name", [*SIZES, "compression_level", "inline_bytes"])
def test_layout_sizes_must_be_integers_in_range(name: str) -> None:
    """They name themselves; NumPy's numbers are numbers."""
    wrong = [*NO_NUMBERS, *([] if name == "inline_bytes" else [0])]
    wrong += [] if name == "segment_rows" else [None]
    for value in wrong:
        with pytest.raises(InvalidInputError, match=f"give {name} as an int of at least"):
            segstore.Layout(**{name: value})
    assert getattr(segstore.Layout(**{name: np.int64(7)}), name) == 7


def test_words_and_names_of_a_layout_are_checked(stream: segstore.Stream) -> None:
    """Also that it is one."""
    for name, value in (("segment_format", "orc"), ("compression", "gzip"), ("compression", 5)):
        with pytest.raises(InvalidInputError, match=f"give {name} as one of"):
            segstore.Layout(**{name: value})  # type: ignore[arg-type]
    for columns in ("n", [1], 5):
        with pytest.raises(InvalidInputError, match="stats_columns as a list"):
            segstore.Layout(stats_columns=columns)  # type: ignore[arg-type]
    assert segstore.Layout(stats_columns=["n"]).stats_columns == ("n",)  # type: ignore[arg-type]
    layout: Any = {"frame_rows": 5}
    for call in (stream.append, stream.overwrite):
        with pytest.raises(InvalidInputError, match="not a layout"):
            call(TABLE, layout=layout)
    for call in (stream.appender, stream.compact):
        with pytest.raises(InvalidInputError, match="not a layout"):
            call(layout=layout)


def calls(stream: segstore.Stream) -> dict[str, Callable[[Any], object]]:
    """Return every call that takes a number, by what the error has to name."""
    reading = snapshot(stream).plan()
    reader = stream.readers.register("mine")
    return {
        "history": stream.history,
        "end": lambda value: stream.history(0, value),
        "flush_rows": lambda value: stream.appender(flush_rows=value),
        "flush_bytes": lambda value: stream.appender(flush_bytes=value),
        "target_rows": lambda value: stream.compact(target_rows=value),
        "target_bytes": lambda value: stream.compact(target_bytes=value),
        "budget_bytes": lambda value: stream.compact(budget_bytes=value),
        "minor": lambda value: stream.compact(minor=value),
        "minor pair": lambda value: stream.compact(minor=(value, 3)),
        "partition_bytes": lambda value: snapshot(stream).tasks(reading, partition_bytes=value),
        "partition_rows": lambda value: snapshot(stream).tasks(reading, partition_rows=value),
        "min_partitions": lambda value: snapshot(stream).tasks(reading, min_partitions=value),
        "depth": lambda value: segstore.list_streams("memory://x", depth=value),
        "min_versions": lambda value: stream.maintain(keep="30d", min_versions=value),
        "publish": reader.publish,
        "lapse_s": lambda value: stream.readers.register("other", lapse_s=value),
        "batch_id": lambda value: stream.append(TABLE, writer_id="w", batch_id=value),
        "position": lambda value: stream.read(
            segstore.Position(stream._log.root.stream_id, 0, value)
        ),
        "generation": lambda value: stream.read(
            segstore.Position(stream._log.root.stream_id, value, 0)
        ),
        "cut": stream.read,
        "tag": lambda value: stream.tags.set("t", value),
        "max_bytes": lambda value: stream.retain(max_bytes=value),
        "version": lambda value: stream.outcome("t", value),
    }


@pytest.mark.parametrize("value", [-1, 1.5, True, math.nan, math.inf])
def test_numbers_out_of_range_are_refused_by_every_call(
    stream: segstore.Stream, value: Any
) -> None:
    """Nothing is committed."""
    version = stream.version
    for name, call in calls(stream).items():
        try:
            call(value)
        except InvalidInputError:
            continue
        pytest.fail(f"{name} took {value!r}")
    assert stream.refresh().version == version + 1  # the reader was announced
    assert stream.tail == 3


@pytest.mark.parametrize("seconds", [-5, -0.1, math.nan, math.inf, -math.inf, True, "5"])
def test_seconds_are_finite_and_never_negative(stream: segstore.Stream, seconds: Any) -> None:
    """They name the argument."""
    with pytest.raises(InvalidInputError, match="give keep as a whole number of seconds"):
        stream.maintain(keep=seconds)
    with pytest.raises(InvalidInputError, match="give grace as a whole number of seconds"):
        stream.maintain(grace=seconds, short_grace=True, dry_run=True)
    for value in (seconds, 0):
        with pytest.raises(InvalidInputError, match="give flush_seconds as a finite number"):
            stream.appender(flush_seconds=value)


def test_what_is_no_text_is_refused(stream: segstore.Stream) -> None:
    """Names of columns, of writers and of copies, and transactions."""
    wrong: list[Callable[[], object]] = [
        lambda: stream.read(columns=5),  # type: ignore[arg-type]
        lambda: stream.read(columns="n"),
        lambda: stream.read(columns={"n": 1}),  # type: ignore[arg-type]
        lambda: stream.read(offset_column=5),  # type: ignore[arg-type]
        lambda: stream.read(segment_column=""),
        lambda: stream.append(TABLE, writer_id=5, batch_id=1),  # type: ignore[arg-type]
        lambda: stream.copy_to("memory://x", copy_id=5),  # type: ignore[arg-type]
        lambda: stream.outcome(5),  # type: ignore[arg-type]
        lambda: stream.outcome(""),
    ]
    for call in wrong:
        with pytest.raises(InvalidInputError):
            call()


@pytest.mark.parametrize("policy", [{"max_age_s": 5}, {"max_age": 5, "x": 1}, 5, "1d", {}])
def test_a_policy_is_a_retention_policy_or_a_dict(stream: segstore.Stream, policy: Any) -> None:
    """Anything else is answered with how to write one."""
    with pytest.raises(InvalidInputError, match=r"give segstore\.RetentionPolicy\(max_age"):
        stream.settings.update(retention=policy)


def nested(depth: int, kind: str) -> pa.DataType:
    """Return a type of so many levels."""
    made = pa.int64()
    for _ in range(depth):
        if kind == "map":
            made = pa.map_(pa.string(), made)
        else:
            made = pa.list_(made) if kind == "list" else pa.struct([("x", made)])
    return made


@pytest.mark.parametrize(
    ("kind", "depth"), [("struct", 61), ("list", 61), ("map", 61), ("struct", 500)]
)
def test_schemas_nested_too_deeply_are_refused(
    stream: segstore.Stream, kind: str, depth: int
) -> None:
    """By every call that brings one, before anything is written."""
    schema = pa.schema([("n", pa.int64()), ("deep", nested(depth, kind))])
    given = schema.empty_table()
    wrong: list[Callable[[], object]] = [
        lambda: new(schema),
        lambda: stream.append(given),
        lambda: stream.append(given, merge_schema=True),
        lambda: stream.overwrite(given, overwrite_schema=True),
        lambda: stream.appender(merge_schema=True).append(given),
    ]
    for call in wrong:
        with pytest.raises(InvalidInputError, match="nested too deeply"):
            call()
    assert stream.refresh().version == 1
    with pytest.raises(CorruptionError):
        decode_schema(encode_schema(schema))


@pytest.mark.parametrize(("kind", "depth"), [("struct", 60), ("list", 60), ("map", 30)])
def test_the_deepest_schema_is_kept(kind: str, depth: int) -> None:
    """Written, opened and read."""
    schema = pa.schema([("deep", nested(depth, kind))])
    stream = new(schema)
    stream.append(pa.table([pa.nulls(2, schema.field(0).type)], schema=schema))
    assert segstore.open(stream.url).read().read_all().num_rows == 2


def test_an_unnamed_index_of_pandas_is_the_callers_to_decide(stream: segstore.Stream) -> None:
    """A range is no data, a named index is a column, and others are refused with what to do."""
    frame = pd.DataFrame({"n": [1, 2, 3, 4]})
    assert stream.append(frame).rows == 4
    assert stream.append(frame.iloc[1:]).rows == 3
    picked = frame.iloc[[0, 1, 3]]
    for given in (picked, pa.Table.from_pandas(picked), pa.RecordBatch.from_pandas(picked)):
        for merge in (False, True):
            with pytest.raises(SchemaMismatchError, match=r"df\.reset_index\(drop=True\)"):
                stream.append(given, merge_schema=merge)
    with pytest.raises(SchemaMismatchError, match="reset_index"):
        new(pa.Schema.from_pandas(picked))
    assert stream.append(picked.reset_index(drop=True)).rows == 3
    named = picked.rename_axis("id").reset_index()
    assert stream.append(named, merge_schema=True).rows == 3
    assert stream.refresh().schema.names == ["n", "id"]


def test_error_for_another_librarys_option_names_ours() -> None:
    """Without their values, before any request."""
    pytest.importorskip("s3fs")
    given = {"AWS_ACCESS_KEY_ID": "AKIAX", "aws_secret_access_key": "hidden", "region": "eu"}
    with pytest.raises(InvalidInputError) as caught:
        open_storage("s3://bucket/s", given)
    text = str(caught.value)
    assert "instead of AWS_ACCESS_KEY_ID write key" in text
    assert "instead of aws_secret_access_key write secret" in text
    assert "instead of region write client_kwargs" in text
    assert "AKIAX" not in text
    assert "hidden" not in text
    with pytest.raises(InvalidInputError, match="starts with ~"):
        open_storage("s3://bucket/s", {"~/data": {"key": "k"}})
