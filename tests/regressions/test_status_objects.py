"""Status objects: those that a crash cut, those that one commit makes too large, retired ones.

On a filesystem for a single writer an object may be there before it is whole. Its name says its
bytes, so the next run plans the same name; it found that taken, and committed the part.
"""

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest
from faults import Crash
from stream_kit import values
from wrapped_storage import WrappedStorage

from segstore_ds.format.envelope import encode_envelope
from segstore_ds.format.names import both_names
from segstore_ds.format.root import PartRef, encode_root
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.write.layout import Layout

WIDE = pa.schema([("n", pa.int64()), *((f"column {n:03}", pa.string()) for n in range(400))])
SOFT = "segstore_ds.status.table.SEGMENTS.rows"
TABLE = pa.table({"n": [0, 1, 2]})
SINGLE = Layout(inline_bytes=0, segment_rows=1, frame_rows=1, segment_format="arrow")


class CutShort(WrappedStorage):
    """A storage whose process ends while it creates the first object under a prefix."""

    def __init__(self, inner: Storage, prefix: str, kept: int) -> None:
        super().__init__(inner)
        self.prefix, self.kept = prefix, kept

    def create(self, path: str, data: bytes) -> bool:
        """Write a part of the object, and end."""
        if path.startswith(self.prefix):
            self.inner.put(path, data[: self.kept])
            raise Crash
        return self.inner.create(path, data)


@pytest.fixture
def storage() -> Storage:
    """An empty folder."""
    return open_storage("memory://status")


def end_within(storage: Storage, prefix: str, kept: int, run: Callable[[Storage], object]) -> None:
    """Let a process end while it creates an object."""
    with pytest.raises(Crash):
        run(CutShort(storage, prefix, kept))


@pytest.mark.parametrize("kept", [1, 100])
def test_stream_is_created_after_its_schema_was_cut(storage, kept):
    """The schema of a wide table is an object, and the same one in each attempt."""
    end_within(storage, "status/", kept, lambda cut: create_on(cut, WIDE))
    create_on(storage, WIDE).append([{"n": n} for n in range(3)])
    assert values(open_on(storage)) == [0, 1, 2]
    open_on(storage).verify().check()


def test_append_after_what_it_moved_out_of_the_root_was_cut(storage, monkeypatch):
    """Inline segments become one object, which has the same name again."""
    monkeypatch.setattr(SOFT, 2)
    stream = create_on(storage, TABLE.schema, upkeep=None)
    for _ in range(2):
        stream.append(TABLE)
    end_within(storage, "segments/", 100, lambda cut: open_on(cut).append(TABLE))
    assert open_on(storage).version == stream.version
    open_on(storage).append(TABLE)
    assert list(storage.list("segments/"))
    assert values(open_on(storage)) == [0, 1, 2] * 3
    open_on(storage).verify().check()


def test_follower_gets_a_part_that_was_cut_there(tmp_path):
    """The next run ships the same part under the same name."""
    stream = create_on(open_storage(tmp_path / "a"), WIDE, upkeep=None)
    stream.append([{"n": n} for n in range(3)])
    (schema,) = stream._log.storage.list("status/")
    copy = open_storage(tmp_path / "b")
    copy.put(schema.path, stream._log.storage.get(schema.path)[:100])
    stream.followers.add(copy.url)
    assert values(open_on(copy)) == [0, 1, 2]


def test_commit_of_many_segments_makes_many_parts(storage, monkeypatch):
    """No part lists more segments than a final one: it was too large to be read again."""
    monkeypatch.setattr(SOFT, 2)
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.final", 3)
    stream = create_on(storage, TABLE.schema)
    stream.append(pa.table({"n": range(8)}), layout=SINGLE)
    assert [part.count for part in stream._log.root.parts] == [3, 3, 2]
    assert values(open_on(storage)) == list(range(8))
    stream.verify().check()


@pytest.mark.parametrize("retired_inline", [0, 100])
def test_segments_of_a_retired_part_are_no_leftovers(storage, monkeypatch, retired_inline):
    """They are retired with it, whether the root or a part lists them."""
    monkeypatch.setattr(SOFT, 2)
    monkeypatch.setattr("segstore_ds.status.table.RETIRED.rows", retired_inline)
    stream = create_on(storage, TABLE.schema)
    stream.append(TABLE, layout=SINGLE)
    stream.append(TABLE)
    stream.overwrite(TABLE)
    assert bool(stream._log.root.retired_parts) == (retired_inline == 0)
    assert stream.verify().check().leftovers == []
    if retired_inline:
        # Nothing refers to the segments of a lost part; the version that listed it is damaged.
        (part,) = [item for item in stream._log.root.retired if item.kind == "part"]
        for path in both_names(part.path):
            storage.delete(path)
        report = stream.verify()
        assert [problem.where for problem in report.problems] == [*both_names(part.path)]
        assert len(report.leftovers) == 3


def test_gap_in_the_log_is_reported_as_a_range(storage):
    """A commit file far beyond the others is a gap of two ends: all 10^17 numbers were listed."""
    stream = create_on(storage, TABLE.schema)
    root = stream._log.root
    path = f"status/{0:020d}-history-{'0' * 32}"
    part = PartRef(path, 0, 10**17, 10**17, 1, root.time_us, root.time_us)
    row = replace(root.history[0], version=10**17)
    far = replace(root, version=10**17, parent="x", history=(row,), history_parts=(part,))
    storage.create(f"log/{10**17:020d}", encode_envelope(encode_root(far)))
    problems = stream.verify().problems
    name, twin = f"{1:020d}", path.rpartition("/")[2]
    assert [problem.where.rpartition("/")[2] for problem in problems] == [name, twin, twin]
    assert f"1 to {10**17 - 1}" in problems[0].what
