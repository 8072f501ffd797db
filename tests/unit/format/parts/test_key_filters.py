"""Filters of whole segments: as bytes and back, within their shares, and never without a value."""

import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from segstore_ds.errors import CorruptionError
from segstore_ds.format import bloom
from segstore_ds.format.parts import segments
from segstore_ds.format.parts.columns import from_entries
from segstore_ds.format.parts.segments import SegmentFilters, join_frames, parse_filters
from segstore_ds.format.root import SegmentEntry
from segstore_ds.format.statistics import Stats

RANDOM = random.Random(3)
TYPE = pa.map_(pa.string(), pa.list_(pa.binary()))
SEGMENTS: list[SegmentFilters] = [
    None,
    {},
    {"user": (bytes(range(32)),)},
    {"a": (bytes(64), bytes(32)), "größe": (bytes(range(32, 64)),)},
]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1]),
        pa.array([[("user", [])]], TYPE),
        pa.array([[("user", [b""])]], TYPE),
        pa.array([[("user", [bytes(33)])]], TYPE),
        pa.array([[("user", None)]], TYPE),
        pa.array([[("", [bytes(32)])]], TYPE),
    ],
)
def test_malformed_filters_are_refused(column: pa.Array) -> None:
    with pytest.raises(CorruptionError):
        parse_filters(pa.record_batch([column], ["filters"]), "filters", where="x")
    with pytest.raises(CorruptionError):
        parse_filters(pa.record_batch([column], ["other"]), "filters", where="x")


def test_filters_of_another_part_are_refused() -> None:
    columns = from_entries([SegmentEntry(n, f"t/{n}", 9, 99, 9, 7) for n in range(4)])
    part, _ = segments.build_part(columns, Stats(4, {}), SEGMENTS)
    _, behind = segments.build_part(columns, Stats(4, {}), [None, {}, {}, {}])
    with pytest.raises(CorruptionError, match="wrong digest"):
        segments.read_filters(part, behind, where="x")


def test_no_value_of_a_frame_is_lost() -> None:
    for sizes in ((8, 8), (30, 30, 2), (60, 60, 60), (0, 5), (1,)):
        frames = []
        for size in sizes:
            values = [RANDOM.randbytes(8) for _ in range(size)]
            frames.append(bloom.hash_values(pa.array(values, pa.binary())))
        filters = [{"key": bloom.insert(frame, 4)} for frame in frames]
        found = join_frames(filters, segment_bytes=1 << 20)["key"]
        assert len(found) <= len(frames)
        for frame in frames:
            held = np.array([bloom.may_hold(data, frame) for data in found])
            assert held.any(axis=0).all()
            for value in frame:
                assert bloom.hold_any(found, np.array([value])).any()


def test_parts_hold_a_bounded_size_of_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "FILTER_BYTES", 32 * 5)
    filled: list[SegmentFilters] = [{"a": (RANDOM.randbytes(32),)} for _ in range(8)]
    entries = [SegmentEntry(n, f"t/{n}", 9, 99, 9, 7) for n in range(8)]
    part, behind = segments.build_part(from_entries(entries), Stats(8, {}), filled)
    found = segments.read_filters(part, behind, where="x")
    assert found == [*filled[:5], {}, {}, {}]
    assert part.looked == 8


def part_of(filters: list[SegmentFilters]) -> tuple[segments.Part, list[SegmentFilters]]:
    """Return a part with filters, and what is read of it."""
    entries = [SegmentEntry(n, f"t/{n}", 9, 99, 9, 7) for n in range(len(filters))]
    none = Stats(len(filters), {})
    part, behind = segments.build_part(from_entries(entries), none, filters)
    return part, segments.read_filters(part, behind, where="x")


@pytest.mark.parametrize("change", [{"looked": 2}, {"columns": 3}])
def test_filters_of_other_segments_are_refused(change: dict[str, int]) -> None:
    part, _ = part_of(SEGMENTS)
    _, behind = segments.build_part(part.columns, Stats(4, {}), SEGMENTS)
    wrong = replace(part, looked=change.get("looked", part.looked))
    wrong = replace(wrong, columns=part.columns.slice(0, change.get("columns", 4)))
    with pytest.raises(CorruptionError, match="filters do not match"):
        segments.read_filters(wrong, behind, where="x")
