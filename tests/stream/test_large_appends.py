"""A large append from memory is encoded by several threads, and is one commit all the same."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pyarrow as pa
import pytest
from faults import Crash, Fault, FaultStorage
from stream_kit import KINDS

import segstore_ds as segstore
from segstore_ds.errors import InternalError, InvalidInputError, StorageError
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.write import inputs

ROWS, PARTS = 40_000, 3
LAYOUT = segstore.Layout(inline_bytes=0, frame_rows=3000)
TABLE = pa.table({"n": range(ROWS), "s": [f"text {row}" for row in range(ROWS)]})


@pytest.fixture(autouse=True)
def _parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small writes be large ones, for three threads."""
    monkeypatch.setattr(inputs, "PART_ROWS", ROWS // PARTS - 1)
    monkeypatch.setattr(inputs, "PART_BYTES", 1)
    monkeypatch.setattr(os, "cpu_count", lambda: PARTS)


@pytest.mark.parametrize(
    "given",
    [
        TABLE,
        TABLE.to_batches()[0],
        TABLE.slice(0, ROWS - 1),
        TABLE.to_pandas(),
        pl.DataFrame(TABLE),
        pl.concat([pl.DataFrame(TABLE), pl.DataFrame(TABLE)], rechunk=False),
    ],
    ids=["table", "batch", "slice", "pandas", "polars", "chunks"],
)
def test_large_append_is_one_commit_of_several_segments_in_order(
    tmp_path: Path, given: Any
) -> None:
    """Offsets follow the order of the rows, and a repeat of the batch is known as one."""
    stream = segstore.create(tmp_path / "s", TABLE.schema)
    done = stream.append(given, layout=LAYOUT, writer_id="w", batch_id=1)
    table = pa.table(given)
    assert (done.start, done.end, stream.version) == (0, table.num_rows, done.version)
    assert len(stream.segments().read_all()) == PARTS
    assert stream.read().read_all().equals(table.cast(TABLE.schema))
    assert stream.append(given, layout=LAYOUT, writer_id="w", batch_id=1).repeated
    assert stream.verify().ok


@pytest.mark.parametrize("bad", [0, PARTS - 1])
def test_part_that_fails_leaves_nothing_of_the_others(tmp_path: Path, bad: int) -> None:
    """A text that is not UTF-8 refuses the whole append, and every staged object is deleted."""
    stream = segstore.create(tmp_path / "s", pa.schema([("s", pa.string())]))
    texts = [b"text"] * ROWS
    texts[bad * (ROWS - 1) // (PARTS - 1)] = b"\xff"
    column = pa.array(texts, pa.binary()).view(pa.string())
    with pytest.raises(InvalidInputError, match="not UTF-8"):
        stream.append(pa.table({"s": column}), layout=LAYOUT)
    assert stream.tail == 0
    assert not [path for path in (tmp_path / "s" / "segments").rglob("*") if path.is_file()]


@pytest.mark.parametrize("kind", KINDS)
def test_fault_at_any_call_of_any_thread_leaves_all_events_or_none(
    tmp_path: Path, kind: Literal["fail", "crash"]
) -> None:
    """Whichever call fails, a reader sees the whole append or nothing of it."""
    at, ends = 1, set()
    while ends.isdisjoint({"untouched"}):
        inner = open_storage(tmp_path / str(at))
        create_on(inner, TABLE.schema)
        faulty = FaultStorage(inner, Fault(at, kind))
        with suppress(StorageError, Crash, InternalError):
            open_on(faulty).append(TABLE, layout=LAYOUT)
        ends.add("untouched" if not faulty.struck else open_on(inner).tail)
        found = open_on(inner).read().read_all()
        assert found.equals(TABLE) or not found.num_rows
        assert open_on(inner).verify().ok
        at += 1
    assert ends >= {0, ROWS}
