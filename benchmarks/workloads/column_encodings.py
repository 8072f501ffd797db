"""What each way to encode a column of Parquet costs, and which one is chosen."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

import segstore_ds as segstore
from benchmarks.datasets import EVENTS, columns, events
from benchmarks.report import Found, Ratio
from benchmarks.workload import Settings, cpu_timed, rounded, workload
from segstore_ds.format.parquet import encodings, writer
from segstore_ds.format.parquet.encodings import Encodings, Way, choose_encodings, leaves_of

ENCODINGS = ("PLAIN", "DICTIONARY", "DELTA_BINARY_PACKED")


@workload(
    "one column at a time, in memory, one thread, by pyarrow's writer and reader alone",
    "the weights decide what is cheapest; the frontier does not depend on them",
    rows=1 << 18,
    tiny_rows=2000,
)
def column_encodings(settings: Settings) -> Found:
    """Bytes and CPU of a value by encoding and codec, for real and made-up columns (rows of each).

    A way is on the frontier if no other one takes fewer bytes and less CPU to write and to read.
    Beside that: the share of the CPU of an append of 100,000 events that a choice takes.
    """
    rows: list[dict[str, Any]] = []
    spent, least, trials = [], [], []
    for name, column in columns(settings.rows).items():
        batch = pa.record_batch({"c": column})
        found = {way: _measure(batch, way, settings.rounds) for way in _ways(column.type)}
        paths = _paths(batch)
        chosen = choose_encodings(batch, paths, compression="zstd", level=2).ways[paths[-1]]
        choose = partial(choose_encodings, batch, paths, compression="zstd", level=2)
        trials.append(min(cpu_timed(choose) for _ in range(max(settings.rounds, 3))) * 1e3)
        costs = {way: _cost(*sizes) for way, sizes in found.items()}
        spent.append(costs[chosen])
        least.append(min(costs.values()))
        for way, sizes in found.items():
            beaten = any(
                all(a <= b for a, b in zip(other, sizes, strict=True)) and other != sizes
                for other in found.values()
            )
            rows.append(
                {
                    "column": name,
                    "way": f"{way[0].split('_')[0].lower()}{', zstd' if way[1] else ''}",
                    "bytes/value": rounded(sizes[0]),
                    "write ns": rounded(sizes[1]),
                    "read ns": rounded(sizes[2]),
                    "cost ns": rounded(costs[way]),
                    "frontier": "" if beaten else "x",
                    "chosen": "x" if way == chosen else "",
                }
            )
    ratios = [
        Ratio("cost of all columns: chosen / cheapest", sum(spent) / sum(least), 1.05, most=True),
        Ratio("CPU ms of a choice, mean of all columns", sum(trials) / len(trials)),
        *_shares(settings),
    ]
    return Found(rows, ratios, {"columns": len(spent)})


def _shares(settings: Settings) -> list[Ratio]:
    """Return the shares of an append that the first choice takes, and seeing that it suits."""
    each = 100_000  # few enough for a tiny run, too: fewer choose nothing
    shares: dict[str, list[float]] = {"first choice": [], "later check": []}
    with settings.scratch() as scratch:
        for turn in range(max(settings.rounds, 3)):
            stream = segstore.create(scratch / str(turn), EVENTS, upkeep=None)
            for number in range(4):
                data = events(number * each, each)
                with (
                    _noted(writer, "choose_encodings") as chosen,
                    _noted(encodings.Encodings, "suits") as checked,
                ):
                    spent = cpu_timed(partial(stream.append, data))
                what = "later check" if number else "first choice"
                shares[what].append((sum(chosen) + sum(checked)) / spent)
    return [
        Ratio(f"CPU of an append of {each:,} events: {what} / all", median(found), 0.03, most=True)
        for what, found in shares.items()
    ]


@contextmanager
def _noted(owner: Any, name: str) -> Iterator[list[float]]:
    """Note the seconds of CPU of each call of a function meanwhile."""
    real: Callable[..., Any] = getattr(owner, name)
    found: list[float] = []

    def timed(*given: Any, **how: Any) -> Any:
        start = time.thread_time()
        try:
            return real(*given, **how)
        finally:
            found.append(time.thread_time() - start)

    with mock.patch.object(owner, name, timed):
        yield found


def _paths(batch: pa.RecordBatch) -> list[str]:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches([batch.slice(0, 0)]), sink)
    schema = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    return [schema.column(place).path for place in range(len(leaves_of(batch.schema)))]


def _ways(kind: pa.DataType) -> list[Way]:
    """Return what may be chosen; numbers in lists get no dictionary."""
    whole = pa.types.is_integer(kind) or pa.types.is_temporal(kind)
    return [
        (name, coded)
        for name in ENCODINGS[: 1 if pa.types.is_list(kind) else 2 + whole]
        for coded in (False, True)
    ]


def _measure(batch: pa.RecordBatch, way: Way, rounds: int) -> tuple[float, float, float]:
    """Return bytes, and nanoseconds of a write and of a read, of a value."""
    options = Encodings(dict.fromkeys(_paths(batch), way)).options("zstd", 2)
    table, written = pa.Table.from_batches([batch]), []

    def write() -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(
            table,
            sink,
            row_group_size=batch.num_rows,
            dictionary_pagesize_limit=16 << 20,
            store_decimal_as_integer=True,
            write_page_checksum=True,
            **options,
        )
        written.append(sink.getvalue())

    def read() -> None:
        pq.ParquetFile(pa.BufferReader(written[-1])).read_row_group(0, use_threads=False)

    spent = [min(cpu_timed(call) for _ in range(rounds)) for call in (write, read)]
    group = pq.read_metadata(pa.BufferReader(written[-1])).row_group(0)
    size = sum(group.column(place).total_compressed_size for place in range(group.num_columns))
    return size / batch.num_rows, *(one / batch.num_rows * 1e9 for one in spent)


def _cost(size: float, write_ns: float, read_ns: float) -> float:
    return encodings.BYTE_NS * size + write_ns + encodings.READS * read_ns
