"""One small append after the other on local disk: time, requests and bytes as the log grows."""

import hashlib
import json
import os
import secrets
import statistics
import time
import zlib
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import pyarrow as pa
import zstandard

import segstore_ds as segstore
from benchmarks.datasets import EVENTS, events
from benchmarks.report import Found, Ratio
from benchmarks.workload import Settings, beside_bare, rounded, timed, walk, workload
from segstore_ds.format.inline import join_frames
from segstore_ds.format.root import Root, encode_root
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

BATCH_ROWS = 10
OPENS = 20
HINT_S = 1.1  # the hint that an open starts from is written once a second at most


@workload(
    "one writer, one long-lived handle: nothing has to be looked up between two appends",
    "requests of an open are counted with a fresh hint, and in a burst with one up to a second old",
    "one folder on one disk; over a network each request costs a round trip (see commit_rate)",
    "the bare cost next to it is one synced object through the same storage code",
    "by hand: encoding, checksum, record and a synced file, in straight Python",
    rows=10_000,
    tiny_rows=15,
)
def append_latency(settings: Settings) -> Found:
    """Append 10 events at a time, synced, at 10, 1,000 and 10,000 commits (rows: last of them)."""
    lengths = sorted({min(10, settings.rows), min(1_000, settings.rows), settings.rows})
    samples, opens, rest_s = (5, 2, 0.0) if settings.tiny else (500, OPENS, HINT_S)
    with settings.scratch() as scratch:
        stream = segstore.create(scratch / "stream", EVENTS)
        bare = open_storage(scratch / "bare")
        rows = []
        for length in lengths:
            appends = _appends(scratch, stream, bare, length, samples)
            burst = {f"{name} in a burst": n for name, n in _open(stream, opens).items()}
            time.sleep(rest_s)
            stream.append(events(0, BATCH_ROWS))
            rows.append({"commits": length, **appends, **_open(stream, opens), **burst})
        assert segstore.open(scratch / "stream").tail == stream.tail
        young = segstore.create(scratch / "young", EVENTS)
        walks = walk("an append", partial(young.append, events(0, BATCH_ROWS)), 300, 30)
        for small, goals in ((1, (250,)), (3, (400, 30))):
            few = segstore.create(scratch / f"few-{small}", EVENTS)
            for start in range(0, small * BATCH_ROWS, BATCH_ROWS):
                few.append(events(start, BATCH_ROWS))
            of = f"of {small} small appends"
            walks += walk(f"a read {of}", partial(_read, few), *goals)
            walks += walk(f"an open {of}", partial(segstore.open, few.url), 250)
    first, last = rows[0], rows[-1]
    bounds = {
        "last append / bare cost, medians": (last["median ms"] / last["bare median ms"], 2.5),
        "median at the last / at the first length": (last["median ms"] / first["median ms"], None),
        "p99 / median at the last length": (last["p99 ms"] / last["median ms"], 3),
        "CPU ms of an append": (last["CPU mean ms"], 0.9),
        "CPU of an append / by hand": (last["CPU mean ms"] / last["by_hand CPU ms"], None),
    }
    ratios = [Ratio(name, *bound, most=True) for name, bound in bounds.items()]
    setup = {"appends": f"{samples} of {BATCH_ROWS} rows at each length, beside the bare cost"}
    return Found(rows, [*ratios, *walks], setup)


def _appends(
    folder: Path, stream: Stream, bare: Storage, length: int, samples: int
) -> dict[str, Any]:
    batch = events(0, BATCH_ROWS)
    while stream.version < length:
        stream.append(batch)
    hand = _ByHand(folder / f"by-hand-{length}", stream._log.root)
    return beside_bare(
        repeat(partial(stream.append, batch), samples),
        lambda _: bare.create(f"log/{secrets.token_hex(8)}", b"x" * 1500),
        stream._log.storage.stats,
        "append",
        by_hand=partial(hand.append, batch),
    )


def _read(stream: Stream) -> pa.Table:
    return stream.read(0, "tail").read_all()


def _open(stream: Stream, opens: int) -> dict[str, float]:
    storages = [open_storage(stream.url) for _ in range(opens)]
    median = statistics.median(timed(partial(open_on, storage)) for storage in storages)
    return {"requests/open": storages[-1].stats.total, "open ms": rounded(median * 1e3)}


class _ByHand:
    """The least that a small append has to do, which no code around it can save.

    Appends batches to a folder, each with a record as long as the root of a real stream. Encoded
    rows with a checksum; the record encoded, parsed, compared, compressed and with a digest; all
    that in a file which is durable before it gets a free name, and so is the name. Nothing is
    planned or looked up, and nothing spills, merges or is kept for the next append.
    """

    def __init__(self, folder: Path, root: Root) -> None:
        folder.mkdir()
        self._folder, self._frames = folder, join_frames(root.entries)
        self._record = json.loads(encode_root(root))
        self._zstd = zstandard.ZstdCompressor(level=3)

    def append(self, batch: pa.RecordBatch, number: int) -> None:
        """Append a batch as the file of a number."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        frame = sink.getvalue()
        self._record |= {"version": number, "crc": zlib.crc32(frame)}
        body = json.dumps(self._record, separators=(",", ":"))
        if json.loads(body) != self._record:
            raise ValueError(body)
        stored = self._zstd.compress(body.encode())
        digest = hashlib.blake2b(stored, digest_size=16).digest()
        temporary = self._folder / f".{number}"
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.writev(file, [digest, stored, self._frames, frame])
        os.fsync(file)
        os.close(file)
        (self._folder / f"{number:020d}").hardlink_to(temporary)
        folder = os.open(self._folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        temporary.unlink()
