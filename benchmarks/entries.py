"""Segments that exist as entries of the table status alone: streams of 10^6 of them in a moment."""

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from segstore_ds.compact.run import run_due_merge
from segstore_ds.format.batch_fingerprint import BatchFacts
from segstore_ds.format.names import build_token
from segstore_ds.format.parts.columns import SegmentColumns, from_columns
from segstore_ds.format.root import PartRef, Root, SegmentEntry
from segstore_ds.format.statistics import Stats
from segstore_ds.log.commit import Change
from segstore_ds.status.table import Slot
from segstore_ds.status.table_status import TableStatus
from segstore_ds.storage import Storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.append import AppendPlan
from segstore_ds.write.job import WriteJob
from segstore_ds.write.layout import Layout
from segstore_ds.write.request import WriteRequest

FINAL = 65_000


def columns(first: int, count: int, form: str = "arrow", rows: int = 1000) -> SegmentColumns:
    """Return made-up segments of about so many rows each, with random checksums and tokens."""
    chance = np.random.default_rng(7 + first)
    zeros = np.zeros(count, np.int64)
    counts = chance.integers(rows * 9 // 10, rows * 11 // 10, count)
    numbers = np.arange(first, first + count)
    integers = {
        "epochs": zeros,
        "numbers": numbers,
        "rows": counts,
        "bytes": counts * 40 + chance.integers(0, 800, count),
        "footer_bytes": chance.integers(160, 260, count),
        "crcs": chance.integers(0, 2**32, count),
        "versions": numbers + numbers // 64,
        "tasks": zeros,
        "attempts": zeros,
        "places": zeros,
        "frames": zeros + 1,
        "frame_raws": -(-counts * 60 // (64 << 10)),
    }
    nonces = [chance.bytes(6) for _ in range(count)]
    template = f"{form} {{version}}-{{nonce}}/{{task}}-{{attempt}}-{{place}}.{form}"
    return from_columns(integers, nonces, zeros, [template])


def part_sizes(size: int) -> Iterator[int]:
    """Yield the sizes of parts that a stream of so many segments would have, oldest first."""
    left = size
    for level in (FINAL, 6500, 650, 65):
        while left >= level:
            yield level
            left -= level


def fill(storage: Storage, size: int, form: str = "arrow") -> None:
    """List about so many made-up segments in parts, as a stream of single commits would."""
    stream, status = open_on(storage), TableStatus(storage)

    def build(root: Root, slot: Slot) -> Change[None]:
        parts: list[PartRef] = []
        first = start = 0
        for count in part_sizes(size):
            made = columns(first, count, form)
            parts.append(status.table.put(root.version, start, made, Stats(count, {})))
            first, start = first + count, parts[-1].end
        filled = replace(root, parts=tuple(parts), tail=start, next_segment=first)
        return Change(status.tidy(replace(filled, operation="append"), slot))

    stream._log.commit(build, transaction="f" * 32)


def commit_entry(stream: Stream, chance: random.Random, form: str = "arrow") -> None:
    """Commit a made-up segment."""
    rows = chance.randrange(900, 1100)
    token = build_token(stream.version, f"{chance.getrandbits(48):012x}")
    entry = SegmentEntry(0, f"{token}/0-0-0.{form}", rows, rows * 40, 200, 0, form)
    commit_staged(stream, token, (entry,))
    run_due_merge(stream._context)


def commit_staged(stream: Stream, token: str, staged: tuple[SegmentEntry, ...]) -> None:
    """Commit made-up segments that a job would have staged under a token."""
    log, request = stream._log, WriteRequest(stream.schema, Layout(), "")
    job = WriteJob(log.storage, token, log.new_transaction(), request, request.schema)
    facts = BatchFacts(sum(segment.rows for segment in staged), {})
    stream._commits.appender.commit(AppendPlan(job, staged, facts))
