"""The published Iceberg table through Iceberg's own runtime, on the newest Spark that it knows."""

import datetime as dt
import os
import subprocess
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import publish_kit
import pyarrow as pa
import pytest
from process_kit import plain_environment
from publish_kit import ICEBERG, Mixture, Table

import segstore_ds as segstore
from benchmarks.spark_peers import INSTALLATIONS
from benchmarks.workloads.spark_rivals import python_with
from segstore_ds.publish.iceberg import newest
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SETTLED = Layout(inline_bytes=0, segment_format="parquet")
NESTED = pa.struct([("a", pa.int8()), ("b", pa.list_(pa.timestamp("us", "UTC")))])
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("small", pa.int16()),
        ("price", pa.decimal128(9, 2)),
        ("day", pa.date32()),
        ("local", pa.timestamp("us")),
        ("raw", pa.binary()),
        ("nested", NESTED),
        ("tags", pa.map_(pa.string(), pa.float32())),
    ]
)


def events(start: int, end: int, schema: pa.Schema = SCHEMA) -> pa.Table:
    """Return the events start to end, in a schema that may have wider types and more columns."""
    day = dt.datetime(1969, 12, 31, 23)
    return pa.Table.from_pylist(
        [
            {
                "n": n,
                "small": n % 100 if n % 3 else None,
                "price": Decimal(n) / 4,
                "day": (day + dt.timedelta(days=n)).date(),
                "local": day + dt.timedelta(hours=n),
                "raw": bytes([n % 256]),
                "nested": {"a": n % 100, "b": [day.replace(tzinfo=dt.UTC)]} if n % 5 else None,
                "tags": [("k", n / 2)],
                "took": dt.timedelta(seconds=n),
            }
            for n in range(start, end)
        ],
        schema,
    )


def change(stream: Stream) -> Iterator[None]:
    """Change the stream in every way that a table has to see, step by step."""
    for start in range(0, 30, 10):
        stream.append(events(start, start + 10), layout=SETTLED)
    yield
    stream.append(events(30, 40), layout=SETTLED)
    stream.compact(start=10, layout=SETTLED)
    yield
    stream.truncate(17)
    yield
    wide = pa.schema(
        [
            ("n", pa.int64()),
            ("small", pa.int64()),
            ("price", pa.decimal128(20, 4)),
            ("nested", pa.struct([("a", pa.int32()), ("c", pa.string())])),
        ]
    )
    stream.append(events(40, 50, wide), layout=SETTLED, merge_schema=True)
    yield
    stream.redact([["n", "==", 41]], columns=["small"])
    yield
    odd = pa.schema([("n", pa.int64()), ("took", pa.duration("us"))])
    stream.append(events(50, 60, odd), layout=SETTLED, merge_schema=True)
    stream.append(events(60, 63), merge_schema=True)
    yield
    stream.restore(3, allow_redacted=True)
    yield
    stream.overwrite(events(70, 80), layout=SETTLED, merge_schema=True)
    yield
    stream.change_schema(rename={"small": "size"}, drop=["nested"])
    yield


def changes_of(folder: Path, table: Table) -> Stream:
    """Return a published stream with every mixture of changes between publications."""
    stream = segstore.create(folder / "changes", publish_kit.SCHEMA, upkeep=None)
    for _ in Mixture(stream).rounds():
        table.publish(stream)
    table.publish(stream, settle=True)
    return stream


@pytest.fixture(scope="module")
def python() -> Path:
    """The Python of an environment with that Spark, which is made once and kept."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        return python_with(folder / "segstore-benchmarks", INSTALLATIONS["iceberg"].pyspark)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"Iceberg's Spark can't be installed here: {error}")


def test_spark_reads_rows_and_row_ids_of_every_snapshot(python: Path, tmp_path: Path) -> None:
    """Rows equal the stream's after each of its operations, and row ids are their offsets."""
    wanted: dict[Path, list[dict[str, Any]]] = {}
    stream, target = segstore.create(tmp_path / "stream", SCHEMA, upkeep=None), tmp_path / "rows"
    target.mkdir()
    for _ in change(stream):
        found = stream.publish("iceberg")
        shown = stream.read(found.head, found.tail, offset_column="_row_id").read_all()
        left = shown.drop_columns([*found.left_out])
        snapshot = newest(stream._log.storage).state.snapshot["snapshot-id"]
        wanted[target / f"{snapshot}.arrow"] = left.sort_by("n").to_pylist()
        if len(wanted) == 4:
            before = found.metadata
    # The redaction has taken what was before it out of the table; readers of then may go on.
    assert len(newest(stream._log.storage).state.metadata["snapshots"]) >= 5
    changed = changes_of(tmp_path, ICEBERG)
    kept = newest(changed._log.storage).version - 10
    news = [n for span in ICEBERG.appended(changed._log.storage, kept) for n in range(*span)]
    place = stream.url.removeprefix("file://")
    assert before is not None
    places = [place, str(target), before, changed.url.removeprefix("file://")]
    command = [str(python), str(Path(__file__).with_name("iceberg_driver.py")), *places]
    inside = plain_environment(PYSPARK_PYTHON=str(python), PYTHONPATH=str(ROOT))
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=inside)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "deleted: []" in done.stdout, done.stdout
    assert len(news) > 50
    assert f"streamed: {news}" in done.stdout, done.stdout
    assert segstore.verify(tmp_path / "stream").ok
    assert len(wanted) == 9
    for path, rows in wanted.items():
        with pa.OSFile(str(path)) as file:
            assert pa.ipc.open_file(file).read_all().to_pylist() == rows, path.name
