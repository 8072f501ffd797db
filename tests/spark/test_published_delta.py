"""The published Delta table through delta-spark, on the newest Spark that it knows."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fixtures_s3 import S3Server
from process_kit import plain_environment
from publish_kit import DELTA
from test_published_iceberg import ROOT, SCHEMA, SETTLED, change, changes_of, events

import segstore_ds as segstore
from benchmarks.spark_peers import INSTALLATIONS
from benchmarks.workloads.spark_rivals import python_with

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def python() -> Path:
    """The Python of an environment with that Spark, which is made once and kept."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        return python_with(folder / "segstore-benchmarks", INSTALLATIONS["delta"].pyspark)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"Delta's Spark can't be installed here: {error}")


def test_spark_reads_every_version_and_changes_nothing(
    python: Path, tmp_path: Path, s3_server: S3Server
) -> None:
    """Rows equal the stream's after each of its operations, and row ids are their offsets.

    So they do in an object store, by the stream's address as Hadoop's S3A calls it.
    """
    stream = segstore.create(tmp_path / "stream", SCHEMA)
    stream.settings.update(upkeep=None)
    target = tmp_path / "rows"
    target.mkdir()
    wanted: dict[int, list[dict[str, Any]]] = {}
    for _ in change(stream):
        found = stream.publish("delta")
        shown = stream.read(found.head, found.tail, offset_column="row_id").read_all()
        rows = shown.drop_columns([*found.left_out]).sort_by("n").to_pylist()
        wanted[found.table_version] = rows
    stream.append(events(80, 90), layout=SETTLED, merge_schema=True)  # two files to optimize
    newest = stream.publish("delta").table_version
    changed = changes_of(tmp_path, DELTA)
    folder = Path(stream.url.removeprefix("file://"))
    before = {path for path in folder.rglob("*") if path.is_file()}
    bucket, options = s3_server.new_bucket(), s3_server.options
    far = segstore.create(f"s3://{bucket}/s", SCHEMA, storage_options=options, upkeep=None)
    for start in (0, 10):
        far.append(events(start, start + 10), layout=SETTLED)
    far.truncate(3)
    far.publish("delta")
    driver = str(Path(__file__).with_name("delta_driver.py"))
    command = [str(python), driver, str(folder), str(target), str(newest)]
    command += [changed.url.removeprefix("file://"), f"s3a://{bucket}/s"]
    command += [options[name] for name in ("endpoint_url", "key", "secret")]
    inside = plain_environment(PYSPARK_PYTHON=str(python), PYTHONPATH=str(ROOT))
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=inside)
    unfetched = any(why in done.stderr for why in ("unresolved dependency", "download failed"))
    if done.returncode and unfetched:
        pytest.skip("delta-spark or hadoop-aws can't be fetched here: see spark.jars.packages")
    assert done.returncode == 0, done.stderr[-3000:]
    for version, rows in wanted.items():
        assert read_rows(target / f"{version}.arrow") == rows, version
    assert f"registered: {stream.published.get('delta').tail - stream.head}" in done.stdout
    assert "changed: []" in done.stdout, done.stdout
    assert f"streamed: {list(range(changed.tail))}" in done.stdout, done.stdout
    # A refused append leaves the file that it wrote in the table's folder, which lists it nowhere.
    assert before <= {path for path in folder.rglob("*") if path.is_file()}
    assert len([*(folder / "_delta_log").glob("*.json")]) == newest + 1
    stream.verify().check()
    shown = far.read(offset_column="row_id").read_all().to_pylist()
    assert read_rows(target / "far" / "0.arrow") == shown


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of an Arrow file."""
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_file(file).read_all().to_pylist()
