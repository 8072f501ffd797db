"""The root stays below 64 KiB when everything it holds has grown to its share."""

import json
import string
import uuid
from dataclasses import replace
from random import Random

import pytest
from stream_kit import ROOT_BYTES, make_stream

from segstore_ds.copy import pins
from segstore_ds.format.copies import Pin
from segstore_ds.format.envelope import encode_envelope
from segstore_ds.format.record import to_json
from segstore_ds.format.root import (
    TAG_BYTES,
    TAGS_BYTES,
    BlobRef,
    Epoch,
    HistoryRow,
    PartRef,
    Retired,
    Root,
    SegmentEntry,
    Tag,
    Writer,
    encode_root,
)
from segstore_ds.log.commit import Change
from segstore_ds.retention.drop import plan_drop
from segstore_ds.status import epochs, table, table_status
from segstore_ds.status.history import History
from segstore_ds.status.table import Slot
from segstore_ds.status.table_status import TableStatus
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import open as open_on

SIGNS = string.ascii_letters + string.digits + "._-"
TIME = 1_800_000_000_000_000
SLOT = Slot(1, TIME, 0)


class Chance:
    """Random values of the sizes that a root holds: nothing of them compresses."""

    def __init__(self, seed: int = 1) -> None:
        self._random = Random(seed)

    def number(self, most: int = 1 << 40) -> int:
        """Return a number."""
        return self._random.randrange(most)

    def text(self, length: int) -> str:
        """Return a name."""
        return "".join(self._random.choices(SIGNS, k=length))

    def digest(self) -> str:
        """Return a digest."""
        return f"{self._random.getrandbits(128):032x}"

    def segment(self) -> str:
        """Return the place of a segment."""
        nonce = self._random.getrandbits(48)
        return f"{self.number(1 << 30):020d}-{nonce:012x}/{self.number(99)}-0-0.arrow"

    def named(self, folder: str, kind: str) -> tuple[str, str]:
        """Return a status object's path and its digest."""
        digest = self.digest()
        return f"{folder}/{self.number(1 << 30):020d}-{kind}-{digest}", digest

    def stats(self, columns: int) -> str:
        """Return the statistics of a segment."""
        return json.dumps({f"c{n}": [self.text(32), self.text(32), 0] for n in range(columns)})


def _size(root: Root) -> int:
    return len(encode_envelope(encode_root(root)))


def _entries(chance: Chance, count: int, columns: int) -> tuple[SegmentEntry, ...]:
    return tuple(
        SegmentEntry(
            segment_id=n,
            path=chance.segment(),
            rows=1 + chance.number(1 << 20),
            bytes=1 + chance.number(1 << 30),
            footer_bytes=1 + chance.number(1000),
            footer_crc=chance.number(1 << 32),
            stats=chance.stats(columns),
        )
        for n in range(count)
    )


def _rows(chance: Chance, count: int) -> tuple[HistoryRow, ...]:
    length = table.HISTORY.text_bytes // count - 2
    return tuple(
        HistoryRow(
            version=n,
            time_us=TIME + chance.number(),
            operation="append",
            head=0,
            tail=chance.number(),
            rows=chance.number(1 << 20),
            segments=1,
            bytes=chance.number(1 << 30),
            writer_id=chance.text(length),
            batch_id=chance.number(1 << 20),
            request_bytes=chance.number(9999),
            transaction=chance.digest(),
        )
        for n in range(count)
    )


def _parts(chance: Chance) -> dict[str, object]:
    places = range(table.SEGMENTS.parts)
    numbers = [sorted(chance.number() for _ in range(3)) for _ in places]
    level, index, rows = (
        [chance.named("status", kind)[0] for _ in places]
        for kind in ("segments", "list", "history")
    )
    return {
        "parts": tuple(
            PartRef(path, low, high, 65, 999)
            for path, (low, high, _) in zip(level, numbers, strict=True)
        ),
        "lists": tuple(
            PartRef(path, low, high, 65_000, 99_999)
            for path, (low, high, _) in zip(index[:64], numbers, strict=False)
        ),
        "history_parts": tuple(
            PartRef(path, low, low + 48, 48, 900, TIME + low, TIME + high)
            for path, (low, high, _) in zip(rows[: table.HISTORY.parts], numbers, strict=False)
        ),
    }


def _full(chance: Chance) -> dict[str, object]:
    """Return every field that grows, as large as the next commit would leave it."""
    half = epochs.SCHEMAS_INLINE_BYTES // 2
    blobs = [chance.named("status", "schema") for _ in range(32)]
    writers = 100
    text = table.WRITERS.text_bytes // writers // 3 - 1
    return {
        **_parts(chance),
        "entries": _entries(chance, table.SEGMENTS.rows, 1),
        "history": _rows(chance, table.HISTORY.rows - 1),
        "tags": {
            chance.text(100): Tag(chance.number(), chance.number(1 << 30), TIME + chance.number())
            for _ in range(TAGS_BYTES // (100 + TAG_BYTES))
        },
        "writers": {
            chance.text(text): Writer(
                chance.text(text),
                chance.number(1 << 30),
                9,
                chance.number(1 << 20),
                1 << 20,
                chance.text(text),
            )
            for _ in range(writers)
        },
        "retired": tuple(
            Retired("segment", chance.segment(), chance.number(1 << 30), TIME + chance.number())
            for _ in range(table.RETIRED.rows)
        ),
        "retired_parts": tuple(
            PartRef(chance.named("status", "retired")[0], n, n + 99, 192, 9_999, TIME, TIME + n)
            for n in range(table.RETIRED.parts)
        ),
        "writers_parts": tuple(
            PartRef(chance.named("status", "writers")[0], n, n + 99, 192, 9_999)
            for n in range(table.WRITERS.parts)
        ),
        "epochs": (
            *(Epoch(n, n, chance.text(half), None) for n in range(2)),
            *(
                Epoch(n + 2, n, None, None, BlobRef(path, 9_999, 1))
                for n, (path, digest) in enumerate(blobs)
            ),
        ),
        "pins": {
            chance.digest(): to_json(
                Pin(
                    chance.number(1 << 30),
                    f"s3://b/{chance.text(12)}",
                    clone_id=chance.digest(),
                    made=True,
                )
            )
            for _ in range(pins.MOST_PINS)
        },
    }


def test_root_with_every_share_full_is_below_64_kib():
    """Tags, writers, retired objects, parts, lists, history, entries, schemas and pins at once.

    And so does the last root, which retires all that it listed.
    """
    stream, _ = make_stream(1)
    full = _full(Chance())
    sizes = {name: _size(replace(stream._log.root, **{name: full[name]})) for name in full}
    total = _size(replace(stream._log.root, **full))
    assert total < ROOT_BYTES, sizes
    # No room is left for inline segments: the commit makes an object of them.
    heavy = replace(stream._log.root, **{**full, "entries": 16 * stream._log.root.entries})
    assert heavy.inline_bytes
    assert table_status._is_heavy(heavy, heavy.inline_bytes, 0)
    light = replace(stream._log.root, retired=heavy.retired[:20])
    assert not table_status._is_heavy(light, light.inline_bytes, 0)
    last = plan_drop(replace(stream._log.root, **{**full, "pins": {}}), SLOT)
    assert last is not None
    assert _size(last) < total


@pytest.mark.parametrize("columns", [4, 32])
def test_wide_statistics_move_out_before_they_fill_the_root(columns):
    """Thirty-two columns of random strings take more than a root has, and few commits show it."""
    chance, status = Chance(), TableStatus(open_storage(f"memory://{uuid.uuid4().hex}"))
    root, most = make_stream(0)[0]._log.root, 0
    for number in range(2 * table.SEGMENTS.rows):
        (entry,) = _entries(chance, 1, columns)
        root = replace(
            root,
            entries=(*root.entries, replace(entry, segment_id=number)),
            tail=root.tail + entry.rows,
            next_segment=number + 1,
        )
        root = status.tidy(root, SLOT)
        most = max(most, _size(replace(root, parts=())))
    assert most < 24_000
    assert sum(part.count for part in root.parts) + len(root.entries) == number + 1


def test_long_writer_ids_leave_the_root_early():
    """Forty-eight rows of a thousand random letters each would take more than half of a root."""
    found, chance = History(open_storage(f"memory://{uuid.uuid4().hex}")), Chance()
    root, most = replace(make_stream(0)[0]._log.root, history=()), 0
    rows = [replace(row, writer_id=chance.text(1000)) for row in _rows(chance, 40)]
    times = sorted(row.time_us for row in rows)
    for number, row in enumerate(rows):
        placed = replace(row, version=number + 1, time_us=times[number])
        root = found.tidy(replace(root, history=(*root.history, placed)), SLOT)
        most = max(most, _size(root))
    assert most < 16_000
    assert sum(ref.count for ref in root.history_parts) + len(root.history) == 40


def test_root_above_its_shares_can_be_read_and_extended():
    """What users make one by one is not bounded by them: refusing it would end the stream."""
    stream, storage = make_stream(1)
    chance = Chance()
    given = {f"p{n}": chance.text(1000) for n in range(100)}
    stream._log.commit(
        lambda root, _: Change(replace(root, properties=given, operation="set-properties")),
        transaction="f" * 32,
    )
    assert _size(stream._log.root) > ROOT_BYTES
    seen = open_on(storage, clock=stream._log.clock)
    assert seen._log.root.properties == given
    assert seen.truncate(5) == 5
    assert seen.verify().ok
