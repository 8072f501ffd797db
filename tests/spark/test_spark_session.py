"""register, recommended_conf, and segstore_ds.write: what they set, say and restore."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException

import segstore_ds as segstore
from segstore_ds.spark import workers

SIZING = "spark.sql.execution.arrow.maxBytesPerBatch"

pytestmark = pytest.mark.usefixtures("verified")


@pytest.fixture
def untuned(spark):
    """The session as it was before it was tuned; put back afterwards."""
    before = spark.conf.get(SIZING, None)
    spark.conf.unset(SIZING)
    yield spark
    spark.conf.unset(SIZING)
    if before is not None:
        spark.conf.set(SIZING, before)


def test_register_sets_options_and_explains_their_cost(untuned):
    said = segstore.spark.register(untuned)
    assert dict(said.settings) == {SIZING: "2147483647"}
    assert untuned.conf.get(SIZING) == "2147483647"
    assert "lower that for wide rows" in str(said)
    assert str(said).startswith(f"{SIZING}=2147483647: ")


def test_register_leaves_the_users_own_value(untuned):
    untuned.conf.set(SIZING, "1000000")
    said = segstore.spark.register(untuned)
    assert dict(said.settings) == {}
    assert "nothing was set" in str(said)
    assert untuned.conf.get(SIZING) == "1000000"


def test_register_without_tuning_sets_nothing(untuned):
    assert dict(segstore.spark.register(untuned, tune=False).settings) == {}
    assert untuned.conf.get(SIZING, None) is None


def test_register_twice_is_harmless_and_the_last_options_hold(spark, url, append):
    append(spark.range(3))
    session = spark.newSession()
    reader = session.read.format("segstore")
    segstore.spark.register(session, storage_options={"auto_mkdir": "env:SEGSTORE_NO_SUCH"})
    with pytest.raises(AnalysisException, match="SEGSTORE_NO_SUCH"):
        reader.load(url)
    segstore.spark.register(session)
    segstore.spark.register(session, storage_options={"auto_mkdir": True})
    assert reader.load(url).count() == 3


def test_register_refuses_storage_options_that_are_no_mapping(spark):
    with pytest.raises(segstore.SegstoreError, match="give a dict"):
        segstore.spark.register(spark, storage_options="key=value")


def test_register_beside_a_format_that_spark_keeps(spark, monkeypatch):
    """As Spark 4.0 keeps an installed one, which has no place for a session's storage options."""
    session, kept = spark.newSession(), "DATA_SOURCE_ALREADY_EXISTS"

    def refuse(_registered, _source):
        raise AnalysisException("kept", errorClass=kept)

    monkeypatch.setattr(type(session.dataSource), "register", refuse)
    segstore.spark.register(session)
    with pytest.raises(segstore.errors.InvalidInputError, match="option storageOptions"):
        segstore.spark.register(session, storage_options={"auto_mkdir": True})
    kept = "DATA_SOURCE_NOT_FOUND"
    with pytest.raises(AnalysisException):
        segstore.spark.register(session)


def test_register_concerns_one_session(spark, url, append):
    append(spark.range(3))
    other = spark.newSession()
    segstore.spark.register(other, storage_options={"auto_mkdir": "env:SEGSTORE_NO_SUCH"})
    assert spark.read.format("segstore").load(url).count() == 3


def test_recommended_conf_is_for_builders(spark):
    conf = segstore.spark.recommended_conf()
    assert conf == {"spark.python.unix.domain.socket.enabled": "true", SIZING: "2147483647"}
    for name, value in conf.items():
        assert spark.sparkContext.getConf().get(name) == value


def test_write_tunes_just_that_write(untuned, url, monkeypatch):
    calls = []
    conf = type(untuned.conf)
    for name in ("set", "unset"):
        real = getattr(conf, name)

        def note(self, key, *value, _name=name, _real=real):
            calls.append((_name, key))
            return _real(self, key, *value)

        monkeypatch.setattr(conf, name, note)
    df = untuned.range(0, 100, 1, 1)
    for repeated in (False, True):
        commit = segstore.spark.write(df, url, writerId="etl", batchId=1)
        assert (commit.start, commit.end, commit.repeated) == (0, 100, repeated)
        assert [name for name, key in calls if key == SIZING] == ["set", "unset"]
        calls.clear()
    assert segstore.open(url).tail == 100
    assert untuned.conf.get(SIZING, None) is None
    commit = segstore.spark.write(df, url, mode="overwrite")
    assert segstore.open(url).head == 100
    assert (commit.version, commit.start, commit.end, commit.repeated) == (2, 100, 200, False)
    assert segstore.open(url).outcome(commit.transaction).version == 2
    # Of the write, not of the newest version.
    segstore.open(url).append(pa.table({"id": [1]}))
    other = segstore.spark.write(df, url)
    segstore.open(url).append(pa.table({"id": [2]}))
    assert (other.start, other.end, other.rows) == (201, 301, 100)


def test_write_does_not_fail_where_its_commit_cannot_be_seen(spark, url, caplog):
    """Another process has bound the storage options to this session."""
    session = spark.newSession()
    segstore.spark.register(session)
    session.conf.set("spark.segstore.bound", "by another process")
    assert segstore.spark.write(session.range(3), url) is None
    assert "the write succeeded" in caplog.text
    assert segstore.open(url).tail == 3


def test_write_restores_the_setting_when_it_fails(untuned, url):
    with pytest.raises(AnalysisException, match="did you mean compression"):
        segstore.spark.write(untuned.range(1), url, compresion="zstd")
    assert untuned.conf.get(SIZING, None) is None
    untuned.conf.set(SIZING, "1000000")
    segstore.spark.write(untuned.range(1), url)
    with pytest.raises(AnalysisException):
        segstore.spark.write(untuned.range(1), url, compresion="zstd")
    assert untuned.conf.get(SIZING) == "1000000"


def test_write_refuses_other_modes(spark, url):
    for mode in ("errorifexists", "ignore", "complete"):
        with pytest.raises(segstore.SegstoreError, match="use append or overwrite"):
            segstore.spark.write(spark.range(1), url, mode=mode)
    assert not segstore.exists(url)


def test_plain_save_from_a_thread_is_sparks_own_error(spark, url):
    """Why `segstore.spark.write` exists: in a thread Spark finds no Python source by itself."""
    caught = []

    def save() -> None:
        try:
            spark.range(1).write.format("segstore").mode("append").save(url)
        except (Py4JJavaError, AnalysisException) as error:
            caught.append(str(error))

    thread = threading.Thread(target=save)
    thread.start()
    thread.join()
    assert caught == [] or "DATA_SOURCE_NOT_FOUND" in caught[0]


def active(spark):
    """Return the session inside the JVM that this thread has as its active one, or None."""
    found = spark._jvm.org.apache.spark.sql.SparkSession.getActiveSession()
    return found.get() if found.isDefined() else None


def in_a_new_thread(run):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def test_register_activates_the_session_in_a_thread_that_has_none(spark, url):
    def save():
        before = active(spark)
        segstore.spark.register(spark)
        spark.range(3).write.format("segstore").mode("append").save(url)
        return before, active(spark)

    before, after = in_a_new_thread(save)
    assert before is None
    assert after.equals(spark._jsparkSession)
    assert segstore.open(url).tail == 3


def test_register_leaves_a_threads_own_active_session(spark):
    with segstore.spark.activated(spark):
        segstore.spark.register(spark.newSession())
        assert active(spark).equals(spark._jsparkSession)


def test_activated_puts_back_what_the_thread_had(spark):
    other = spark.newSession()

    def fail():
        with segstore.spark.activated(other):
            assert active(spark).equals(other._jsparkSession)
            raise KeyError

    def nest():
        with segstore.spark.activated(spark):
            with pytest.raises(KeyError):
                fail()
            assert active(spark).equals(spark._jsparkSession)
        return active(spark)

    assert in_a_new_thread(nest) is None


def test_helpers_work_from_threads(spark, url, append, tmp_path):
    """They write, too, and a new thread has no active session."""
    for _ in range(2):
        append(spark.range(3))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: segstore.spark.open(spark, url).compact()).result().groups == 1
        copied = pool.submit(
            segstore.spark.copy, spark, url, f"file://{tmp_path}/copied", "c"
        ).result()
    assert copied.end == 6


def test_writes_from_four_threads_restore_the_setting(untuned, url):
    start = threading.Barrier(4)

    def one(n: int) -> None:
        start.wait()
        if n == 3:
            with pytest.raises(AnalysisException):
                segstore.spark.write(untuned.range(1), url, compresion="zstd")
        else:
            segstore.spark.write(untuned.range(n * 100, n * 100 + 100), url)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(4)))
    assert untuned.conf.get(SIZING, None) is None
    assert sorted(segstore.open(url).read().read_all()["id"].to_pylist()) == list(range(300))


@pytest.mark.slow
@pytest.mark.smoke
def test_twenty_jobs_at_once_lose_nothing(spark, url, load):
    segstore.create(url, pa.schema([("id", pa.int64())]))

    def one(n: int) -> None:
        df = spark.range(n * 1000, n * 1000 + 300, 1, 2)
        segstore.spark.write(
            df, url, inlineBytes=0 if n % 2 else "64k", writerId=f"job{n}", batchId=1
        )

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(one, range(20)))
    rows = load(offsetColumn="o").collect()
    assert sorted(row.o for row in rows) == list(range(6000))
    assert sorted(row.id for row in rows) == [
        n * 1000 + place for n in range(20) for place in range(300)
    ]
    # A job's events stand together and in order: it is one commit.
    by_offset = [row.id for row in sorted(rows, key=lambda row: row.o)]
    for start in range(0, 6000, 300):
        first = by_offset[start]
        assert by_offset[start : start + 300] == list(range(first, first + 300))


def test_reads_from_threads(spark, append, load):
    append(spark.range(100))
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda n: load(startCut=n).count(), range(3))) == [100, 99, 98]


def test_a_tuned_write_takes_the_values_of_python(spark, url):
    options = {
        "statsColumns": ["b"],
        "storageOptions": {},
        "createIfMissing": True,
        "batchId": None,
    }
    df = spark.range(5).selectExpr("id AS a", "id AS b").coalesce(1)
    segstore.spark.write(df, url, inlineBytes=0, **options)
    [segment] = segstore.open(url).segments().read_all().to_pylist()
    assert (segment["stats"], segment["end"]) == ('{"int:b":[0,4,0]}', 5)


@pytest.fixture
def said(sessions, untuned):
    """Return how often the JVM's output says since now that a write was slow."""
    start = sessions.log.stat().st_size

    def count():
        text = sessions.log.read_bytes()[start:].decode(errors="replace")
        return text.count("Spark measured each row of this write")

    return count


def wait_until(done):
    deadline = time.monotonic() + 300
    while not done() and time.monotonic() < deadline:  # the JVM copies what workers print
        time.sleep(0.05)
    assert done()


def test_a_large_untuned_write_says_what_to_call(untuned, url, said):
    large = untuned.range(0, workers.MANY_ROWS, 1, 2)
    large.limit(10).write.format("segstore").mode("append").save(url)
    segstore.spark.write(large, url)
    assert said() == 0
    large.write.format("segstore").mode("append").save(url)
    wait_until(lambda: said() == 1)


def test_a_process_says_once_that_writes_are_slow(caplog):
    """However the rows are spread over the batches of a query."""
    advice = workers.Advice()
    for rows in (workers.MANY_ROWS - 1, 0, 1, workers.MANY_ROWS, 1):
        advice.add(rows)
    [record] = caplog.records
    assert "segstore.spark.register(spark)" in record.getMessage()


@pytest.mark.slow
def test_an_untuned_query_says_what_to_call_when_its_batches_add_up(untuned, tmp_path, url, said):
    segstore.spark.write(untuned.range(0, workers.MANY_ROWS, 1, 2), f"{tmp_path}/source")
    query = (
        untuned.readStream.format("segstore")
        .option("maxRowsPerTrigger", workers.MANY_ROWS // 2)
        .load(f"{tmp_path}/source")
        .writeStream.format("segstore")
        .option("checkpointLocation", f"{tmp_path}/checkpoint")
        .trigger(availableNow=True)
        .start(url)
    )
    query.awaitTermination()
    assert len(query.recentProgress) == 2
    wait_until(lambda: said() == 1)
