"""Key columns: reads that look a key up open only what may hold it, and lose nothing."""

import random
from dataclasses import replace
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.errors import InvalidInputError, SchemaMismatchError
from segstore_ds.format.arrow.index import FrameEntry
from segstore_ds.format.parquet.filters import CAN_WRITE
from segstore_ds.read.segments import open_segment
from segstore_ds.repair import verify
from segstore_ds.stream.stream import Stream

SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int32()), ("x", pa.float64())])
FRAMES = segstore.Layout(inline_bytes=0, frame_rows=100, segment_format="arrow")
FORMATS = pytest.mark.parametrize(
    "form",
    [
        "arrow",
        pytest.param(
            "parquet", marks=pytest.mark.skipif(not CAN_WRITE, reason="from pyarrow 24 on")
        ),
    ],
)


def events(segment: int) -> pa.Table:
    rows = range(segment * 500, segment * 500 + 500)
    users = [f"user-{segment}-{n % 10}" if n % 7 else None for n in rows]
    return pa.table([users, list(rows), [0.5] * 500], schema=SCHEMA)


@pytest.fixture
def stream(tmp_path: Any) -> Stream:
    return fill(tmp_path, "arrow")


def fill(tmp_path: Any, form: str) -> Stream:
    """Return a stream of four segments of five frames each."""
    made = segstore.create(tmp_path / "s", SCHEMA, key_columns=["user"], upkeep=None)
    for segment in range(4):
        made.append(events(segment), layout=replace(FRAMES, segment_format=form))
    return made


def frames_of(stream: Stream) -> list[FrameEntry]:
    placed = stream._context.status.segments(stream._log.root, stream.head, stream.tail)
    return [
        frame
        for item in placed
        for frame in open_segment(stream._log.storage, item.entry, whole=False).frames
    ]


def looked_up(stream: Stream, *filters: Any) -> tuple[list[int], int]:
    """Return what is found, and the ranges that are fetched of segments for it."""
    before = stream._log.storage.stats.requests.get("get_range", 0)
    found = stream.read(filters=list(filters), read_cache_bytes=0).read_all()
    return found["n"].to_pylist(), stream._log.storage.stats.requests.get("get_range", 0) - before


@FORMATS
def test_lookup_fetches_footers_and_the_frames_that_may_match(tmp_path: Any, form: str) -> None:
    stream = fill(tmp_path, form)
    found, ranges = looked_up(stream, ["user", "==", "user-2-7"])
    assert found == [n for n in range(1000, 1500) if n % 10 == 7 and n % 7]
    assert ranges == 2  # bounds tell the segments apart
    assert looked_up(stream, ["user", "==", "user-2-100"]) == ([], 1)
    of_polars = looked_up(stream, pl.col("user").is_in(["user-2-7"]) & (pl.col("n") % 2 == 1))
    assert of_polars == ([n for n in found if n % 2], 2)


@FORMATS
def test_filters_skip_what_bounds_do_not(tmp_path: Any, form: str) -> None:
    stream = segstore.create(tmp_path / "s", SCHEMA, key_columns=["user"], upkeep=None)
    for segment in range(6):  # every segment, and frame, spans all names
        users = ["aaa", "zzz", *(f"user-{n % 15 * 6 + segment}" for n in range(498))]
        stream.append(
            pa.table([users, [segment] * 500, [0.0] * 500], schema=SCHEMA),
            layout=segstore.Layout(inline_bytes=0, segment_format=form),
        )
    found, ranges = looked_up(stream, ["user", "==", "user-22"])
    assert (set(found), ranges) == ({22 % 6}, 6 + 1)
    assert looked_up(stream, ["user", "==", "user-nobody"]) == ([], 6)
    found, ranges = looked_up(stream, ["user", "in", ["user-22", "user-23"]])
    assert (set(found), ranges) == ({4, 5}, 6 + 2)


def test_frames_have_filters_until_key_columns_end(stream: Stream) -> None:
    assert stream.settings.key_columns == ("user",)
    assert all(set(frame.filters) == {"user"} for frame in frames_of(stream))
    stream.settings.update(key_columns=None)
    assert stream.settings.key_columns == ()
    stream.append(events(4), layout=FRAMES)
    assert [bool(frame.filters) for frame in frames_of(stream)] == [True] * 20 + [False] * 5
    assert looked_up(stream, ["user", "==", "user-4-1"])[0]


@FORMATS
@pytest.mark.parametrize("mode", ["merge", "stitch"])
def test_compaction_gives_old_segments_filters(tmp_path: Any, mode: str, form: str) -> None:
    stream = segstore.create(tmp_path / "s", SCHEMA, upkeep=None)
    for segment in range(3):
        stream.append(events(segment), layout=replace(FRAMES, segment_format="arrow"))
    assert not any(frame.filters for frame in frames_of(stream))
    stream.settings.update(key_columns=["user"])
    frames = stream.read().read_all()
    stream.compact(mode=mode, layout=segstore.Layout(segment_format=form))
    assert len(frames_of(stream)) == (1 if mode == "merge" else 15)
    assert all(set(frame.filters) == {"user"} for frame in frames_of(stream))
    assert stream.read().read_all() == frames
    assert stream.verify().ok


def test_values_are_looked_up_in_the_type_of_their_epoch(tmp_path: Any) -> None:
    narrow = pa.schema([("id", pa.int8())])
    stream = segstore.create(tmp_path / "s", narrow, key_columns=["id"], upkeep=None)
    stream.append(pa.table({"id": pa.array([1, -5, None], pa.int8())}), layout=FRAMES)
    wide = pa.table({"id": pa.array([-5, 1 << 40, 251], pa.int64())})
    stream.append(wide, merge_schema=True, layout=FRAMES)
    for value, count in ((-5, 2), (1, 1), (251, 1), (1 << 40, 1), (3, 0)):
        assert stream.read(filters=[["id", "==", value]]).read_all().num_rows == count, value


def test_inline_events_are_found_and_get_filters_as_objects(tmp_path: Any) -> None:
    stream = segstore.create(tmp_path / "s", SCHEMA, key_columns=["user"], upkeep=None)
    for n in range(3):
        stream.append(pa.table([[f"u{n}"], [n], [0.0]], schema=SCHEMA))
    assert stream.info()["inline_segments"] == 3
    assert not any(frame.filters for frame in frames_of_inline(stream))
    assert looked_up(stream, ["user", "==", "u1"])[0] == [1]
    stream.compact()
    assert [set(frame.filters) for frame in frames_of(stream)] == [{"user"}]
    assert looked_up(stream, ["user", "==", "u1"])[0] == [1]


def test_events_that_leave_the_commit_file_get_filters(tmp_path: Any) -> None:
    stream = segstore.create(tmp_path / "s", SCHEMA, key_columns=["user"], upkeep=None)
    chance = random.Random(1)
    for n in range(24):
        users = [chance.randbytes(24).hex() for _ in range(30)]
        stream.append(pa.table([users, [n] * 30, [n / 7] * 30], schema=SCHEMA))
    outlined = [frame for frame in frames_of_inline(stream) if frame.filters]
    assert outlined
    assert stream.verify().ok


def frames_of_inline(stream: Stream) -> list[FrameEntry]:
    storage = stream._log.storage
    placed = stream._context.status.segments(stream._log.root, stream.head, stream.tail)
    return [frame for item in placed for frame in open_segment(storage, item.entry).frames]


def test_key_columns_that_cannot_be_are_refused(tmp_path: Any) -> None:
    for columns, word in ((["x"], "can't be a key"), (["y"], "no such key"), ("user", "list")):
        with pytest.raises(InvalidInputError, match=word):
            segstore.create(tmp_path / "s", SCHEMA, key_columns=columns)
    with pytest.raises(InvalidInputError, match="list"):
        segstore.create(tmp_path / "s", SCHEMA, key_columns=["user", "user"])
    assert not segstore.exists(tmp_path / "s")
    stream = segstore.create(tmp_path / "s", SCHEMA, upkeep=None)
    with pytest.raises(InvalidInputError, match="can't be a key"):
        stream.settings.update(key_columns=["x"])


def test_verify_reports_a_filter_that_lacks_a_value(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stream.verify().ok

    def without_a_bit(*args: Any, **options: Any) -> Any:
        opened = open_segment(*args, **options)
        frames = [
            replace(frame, filters={"user": bytes(len(frame.filters["user"]))})
            for frame in opened.frames
        ]
        return replace(opened, index=replace(opened.index, frames=tuple(frames)))

    monkeypatch.setattr(verify, "open_segment", without_a_bit)
    problems = stream.verify().problems
    assert len(problems) == 20
    assert "filter of column 'user' lacks a value" in problems[0].what


@FORMATS
def test_values_too_long_to_look_up_are_found_and_verify(tmp_path: Any, form: str) -> None:
    """Parquet's writer puts them into its filters, which our lookups don't ask about them."""
    stream = segstore.create(tmp_path / "s", SCHEMA, key_columns=["user"], upkeep=None)
    users = [f"user-{n % 50}" for n in range(400)] + ["x" * 1024, "y" * 1025]
    table = pa.table([users, list(range(402)), [0.0] * 402], schema=SCHEMA)
    layout = replace(FRAMES, segment_format=form)
    stream.append(table, layout=layout)
    for user in ("user-7", "x" * 1024, "y" * 1025, "z" * 1025):
        found = stream.read(filters=[["user", "in", [user]]]).read_all()
        assert found.num_rows == users.count(user)
    assert stream.verify().ok


def test_a_key_column_does_not_become_a_double(tmp_path: Any) -> None:
    """Doubles have no filters; not in a race with the choice of the key columns, either."""
    stream = segstore.create(tmp_path / "s", SCHEMA, key_columns=["n"], upkeep=None)
    stream.append(events(0))
    kinds = [pa.string(), pa.float64(), pa.float64()]
    doubles = pa.table(
        [["a"], [0.5], [0.5]], schema=pa.schema(zip(SCHEMA.names, kinds, strict=True))
    )
    with pytest.raises(SchemaMismatchError, match=r"can't be a key.*'n'.*key_columns"):
        stream.append(doubles, merge_schema=True)
    stream.settings.update(key_columns=None)
    job = stream.plan_write(doubles.schema, merge_schema=True)
    task = job.stage(0, "a", doubles.to_batches())
    stream.settings.update(key_columns=["n"])
    with pytest.raises(SchemaMismatchError, match="can't be a key"):
        stream.commit(job, [task])
    stream.settings.update(key_columns=None)
    stream.append(doubles, merge_schema=True)
    assert stream.scan(filters="n == 499.0 or n == 0.5").count() == 2
