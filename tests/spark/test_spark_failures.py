"""Tasks that are retried or killed, jobs and commits that fail: nothing shows twice, or by half.

The functions that tasks run stand inside the tests, so that they travel by value.
"""

import os
import signal
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import AnalysisException, PythonException
from sessions import session_settings

import segstore_ds as segstore

pytestmark = [pytest.mark.usefixtures("verified"), pytest.mark.slow]


def objects(url: str) -> list[Path]:
    folder = Path(url.removeprefix("file://"), "segments")
    return sorted(path for path in folder.rglob("*") if path.is_file())


def ids(url: str) -> list[int]:
    return segstore.open(url).read().read_all()["id"].to_pylist()


def attempts(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def tried(tmp_path) -> Path:
    """Where tasks note that an attempt came to its middle."""
    folder = tmp_path / "tried"
    folder.mkdir()
    return folder


SMALL_BATCHES = {"spark.sql.execution.arrow.maxRecordsPerBatch": "100"}  # several per task


@pytest.mark.smoke
@pytest.mark.parametrize("inline_bytes", ["0", "64k"])
def test_retried_tasks_never_show_twice(spark, url, append, tried, inline_bytes):
    def fail_once(batches):
        context = TaskContext.get()
        for place, batch in enumerate(batches):
            yield batch
            if place == 3 and context.attemptNumber() == 0:
                (tried / f"{context.partitionId()}").touch()
                raise ValueError("first attempt")

    df = spark.range(0, 3000, 1, 3).mapInArrow(fail_once, "id bigint")
    with session_settings(spark, SMALL_BATCHES):
        append(df, inlineBytes=inline_bytes, frameRows=50)
    assert attempts(tried) == ["0", "1", "2"]
    assert ids(url) == list(range(3000))
    assert segstore.open(url).verify().leftovers == []


def test_failed_job_commits_nothing_and_deletes_its_objects(spark, url, append, tried):
    append(spark.range(5))
    before = objects(url)

    def fail_last(batches):
        context, deadline = TaskContext.get(), time.monotonic() + 300
        yield from batches
        folder = Path(url.removeprefix("file://"), "segments")
        while context.partitionId() == 3:
            if len(list(folder.rglob("*.arrow"))) == 3:  # those of the other tasks
                (tried / f"{context.attemptNumber()}").touch()
                raise ValueError("each attempt")
            assert time.monotonic() < deadline, "the other tasks never finished"
            time.sleep(0.05)

    df = spark.range(0, 400, 1, 4).mapInArrow(fail_last, "id bigint")
    with pytest.raises((PythonException, Py4JJavaError), match="each attempt"):
        append(df, inlineBytes=0, writerId="w", batchId=1)
    assert attempts(tried) == ["0", "1", "2"]
    assert objects(url) == before == []
    assert ids(url) == [0, 1, 2, 3, 4]
    append(spark.range(5, 10), writerId="w", batchId=1)
    assert ids(url) == list(range(10))


def test_job_with_a_stale_expectation_deletes_its_objects(spark, url, append):
    """The schema is replaced by another client while tasks run, so the commit is refused."""
    append(spark.range(5))

    def replace_schema(batches):
        yield from batches
        segstore.open(url).overwrite(pa.table({"text": ["new"]}), overwrite_schema=True)

    df = spark.range(0, 100, 1, 1).mapInArrow(replace_schema, "id bigint")
    with pytest.raises(AnalysisException, match="SEG_SCHEMA_MISMATCH"):
        append(df, inlineBytes=0)
    assert segstore.open(url).read().read_all().to_pylist() == [{"text": "new"}]
    assert segstore.open(url).verify().leftovers == []


def test_commit_that_may_have_happened_deletes_nothing(spark, url, append, tmp_path):
    """The log is out of reach when the driver commits; what was staged has to stay."""
    append(spark.range(5))
    log, away = tmp_path / "stream" / "log", tmp_path / "away"
    before = objects(url)

    def hide_log(batches):
        yield from batches
        log.rename(away)

    df = spark.range(0, 100, 1, 1).mapInArrow(hide_log, "id bigint")
    try:
        with pytest.raises(AnalysisException, match="Failed to commit"):
            append(df, inlineBytes=0)
    finally:
        away.rename(log)
    assert len(objects(url)) == len(before) + 1
    assert ids(url) == [0, 1, 2, 3, 4]
    report = segstore.open(url).verify().check()
    assert len(report.leftovers) == 1


@pytest.mark.parametrize(("mode", "found"), [("append", [0, 77, 2, 3]), ("overwrite", [77, 2, 3])])
def test_events_appended_during_a_job_come_before_its_own(spark, url, append, mode, found):
    """An overwrite, too, keeps what it has not seen."""
    append(spark.range(1))

    def append_meanwhile(batches):
        yield from batches
        segstore.open(url).append(pa.table({"id": [77]}))

    append(spark.range(2, 4, 1, 1).mapInArrow(append_meanwhile, "id bigint"), mode=mode)
    assert ids(url) == found


@pytest.fixture
def small_batches(spark):
    """Several batches per task."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.mark.usefixtures("small_batches")
def test_killed_workers_never_show_twice(spark, url, append, tried):
    """SIGKILL of the Python worker that stages and of the one that feeds it, in mid-partition."""

    def kill_once(batches):
        context = TaskContext.get()
        for place, batch in enumerate(batches):
            yield batch
            if place == 3 and context.attemptNumber() == 0:
                workers = psutil.Process(os.getppid()).children()
                (tried / f"{len(workers)} workers of one daemon").touch()
                for worker in workers:
                    if worker.pid != os.getpid():
                        worker.kill()
                os.kill(os.getpid(), signal.SIGKILL)

    df = spark.range(0, 1000, 1, 1).mapInArrow(kill_once, "id bigint")
    append(df, inlineBytes=0, frameRows=50)
    append(df, inlineBytes="64k", frameRows=50)
    assert int(attempts(tried)[0].split()[0]) >= 2
    assert ids(url) == [*range(1000), *range(1000)]


def test_overwrite_keeps_concurrent_appends(spark, url, append):
    append(spark.range(3))

    def append_meanwhile(batches):
        yield from batches
        segstore.open(url).append(pa.table({"id": [77]}))

    df = spark.range(10, 12, 1, 1).mapInArrow(append_meanwhile, "id bigint")
    append(df, mode="overwrite")
    assert ids(url) == [77, 10, 11]


def test_cancelled_job_shows_nothing(spark, url, append, tried):
    append(spark.range(3))

    def cancel(batches):
        yield from batches
        (tried / "running").touch()
        while True:  # ends when Spark kills the task
            time.sleep(0.1)

    group = "cancelled"
    context = spark.sparkContext
    df = spark.range(0, 100, 1, 2).mapInArrow(cancel, "id bigint")

    from pyspark import InheritableThread

    def write() -> None:
        context.setJobGroup(group, group, interruptOnCancel=True)
        with pytest.raises(Exception, match=r"(?i)cancel"):
            segstore.spark.write(df, url, inlineBytes=0)
        done.append(True)

    done: list[bool] = []
    writing = InheritableThread(target=write)
    writing.start()
    while not (tried / "running").exists():
        assert writing.is_alive()
        time.sleep(0.05)
    context.cancelJobGroup(group)
    writing.join(300)
    assert done == [True]
    assert ids(url) == [0, 1, 2]
