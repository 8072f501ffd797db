"""Spark's Python workers freeze what they hold once; a driver never does."""

import gc
import json
import subprocess
import sys
from collections import defaultdict

import pytest
from frozen_source import NotingSource
from process_kit import plain_environment

import segstore_ds as segstore
from segstore_ds.spark.workers import freeze_worker

BATCHES = 4


@pytest.fixture
def noted(spark, tmp_path):
    """Return the notes so far by process, after registering the format `noting`."""
    spark.dataSource.register(NotingSource)

    def read():
        found = defaultdict(list)
        for line in (tmp_path / "notes").read_text().splitlines():
            note = json.loads(line)
            found[note["pid"]].append(note)
        return found

    return read


def check(noted, entries):
    """Every process froze something, and what it froze first did not grow."""
    notes = noted()
    assert {note["entry"] for found in notes.values() for note in found} == entries
    for found in notes.values():
        counts = [note["frozen"] for note in found]
        assert min(counts) > 10_000
        assert counts == sorted(counts, reverse=True)  # frozen objects may still go, one by one


@pytest.mark.smoke
def test_workers_of_batch_jobs_freeze_once(spark, url, noted):
    for _ in range(BATCHES):
        spark.range(100).write.format("noting").mode("append").save(url)
        assert spark.read.format("noting").load(url).count()
    check(noted, {"schema", "reader", "read", "writer", "write", "commit"})


@pytest.mark.smoke
def test_workers_of_a_streaming_query_freeze_once(spark, url, noted, tmp_path):
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    writer = source.writeStream.format("noting")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(url)
    while segstore_tail(url) < BATCHES * 10:
        assert not query.awaitTermination(0.1), query.exception()
    query.stop()
    check(noted, {"streamWriter", "write", "commit"})


def segstore_tail(url):
    return segstore.open(url).tail if segstore.exists(url) else 0


def test_the_drivers_process_is_never_frozen(spark, url):
    segstore.spark.write(spark.range(3), url)
    assert segstore.spark.read(spark, url).count() == 3
    freeze_worker()
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold()[0] < 10_000


READS_THEN_WRITES = """
import gc, json, sys
from pyspark import worker
usual = gc.get_threshold()
import segstore_ds.spark.source
assert gc.get_threshold()[0] > 100 * usual[0]
from segstore_ds.spark.workers import freeze_worker
notes = []
for entry in ("read", "read", "write", "read", "write"):
    before = gc.get_freeze_count()
    freeze_worker(entry)
    notes.append([entry, gc.get_freeze_count() > before, "pandas" in sys.modules])
    assert gc.get_threshold() == usual
print(json.dumps(notes))
"""


def test_tasks_that_only_read_import_no_pandas():
    """The first task that writes does: Spark makes an array of its message."""
    pytest.importorskip("pandas")
    environment = plain_environment(SPARK_REUSE_WORKER="1")
    command = [sys.executable, "-c", READS_THEN_WRITES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [
        ["read", True, False],
        ["read", False, False],
        ["write", True, True],
        ["read", False, True],
        ["write", False, True],
    ]
