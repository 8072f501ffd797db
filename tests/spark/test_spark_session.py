"""register, recommended_conf, and segstore_ds.write: what they set, say and restore."""

import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
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
    assert segstore.spark.recommended_conf() == {
        "spark.python.unix.domain.socket.enabled": "true",
        SIZING: "2147483647",
    }
    assert dict(segstore.spark.register(untuned, tune=False).settings) == {}
    assert untuned.conf.get(SIZING, None) is None
    said = segstore.spark.register(untuned)
    assert dict(said.settings) == {SIZING: "2147483647"}
    assert untuned.conf.get(SIZING) == "2147483647"
    assert str(said).startswith(f"{SIZING}=2147483647: ")
    assert "lower it for wide rows" in str(said)
    untuned.conf.set(SIZING, "1000000")  # the user's own value
    assert "nothing was set" in str(segstore.spark.register(untuned))
    assert untuned.conf.get(SIZING) == "1000000"
    with pytest.raises(segstore.SegstoreError, match="give a dict"):
        segstore.spark.register(untuned, storage_options="key=value")


def test_register_twice_is_harmless_and_the_last_options_hold(spark, url, append):
    append(spark.range(3))
    session = spark.newSession()
    reader = session.read.format("segstore")
    segstore.spark.register(session, storage_options={"auto_mkdir": "env:SEGSTORE_NO_SUCH"})
    with pytest.raises(AnalysisException, match="SEGSTORE_NO_SUCH"):
        reader.load(url)
    assert spark.read.format("segstore").load(url).count() == 3  # it concerns one session
    segstore.spark.register(session)
    segstore.spark.register(session, storage_options={"auto_mkdir": True})
    assert reader.load(url).count() == 3


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


def test_write_tunes_just_that_write(untuned, url):
    for repeated in (False, True):
        commit = segstore.spark.write(untuned.range(9), url, writerId="etl", batchId=1)
        assert (commit.start, commit.end, commit.repeated) == (0, 9, repeated)
        assert untuned.conf.get(SIZING, None) is None
    with pytest.raises(AnalysisException, match="did you mean compression"):
        segstore.spark.write(untuned.range(1), url, compresion="zstd")
    assert untuned.conf.get(SIZING, None) is None
    untuned.conf.set(SIZING, "1000000")
    segstore.spark.write(untuned.range(1), url)
    with pytest.raises(AnalysisException):
        segstore.spark.write(untuned.range(1), url, compresion="zstd")
    assert untuned.conf.get(SIZING) == "1000000"


def test_write_returns_its_own_commit(spark, url):
    """Not what the newest version is."""
    df, stream = spark.range(9), segstore.create(url, pa.schema([("id", pa.int64())]))
    commit = segstore.spark.write(df, url, mode="overwrite")
    assert (commit.version, commit.start, commit.end, commit.repeated) == (1, 0, 9, False)
    assert stream.refresh().outcome(commit.transaction).version == 1
    stream.append(pa.table({"id": [1]}))
    other = segstore.spark.write(df, url)
    stream.refresh().append(pa.table({"id": [2]}))
    assert (other.start, other.end, other.rows) == (10, 19, 9)


def test_write_does_not_fail_where_its_commit_cannot_be_seen(spark, url, caplog):
    """Another process has bound the storage options to this session."""
    session = spark.newSession()
    segstore.spark.register(session)
    session.conf.set("spark.segstore.bound", "by another process")
    assert segstore.spark.write(session.range(3), url) is None
    assert "the write succeeded" in caplog.text
    assert segstore.open(url).tail == 3


def test_write_refuses_other_modes(spark, url):
    for mode in ("errorifexists", "ignore", "complete"):
        with pytest.raises(segstore.SegstoreError, match="use append or overwrite"):
            segstore.spark.write(spark.range(1), url, mode=mode)
    assert not segstore.exists(url)


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
            segstore.spark.register(other)  # leaves what the thread has
            assert active(spark).equals(spark._jsparkSession)
        return active(spark)

    assert in_a_new_thread(nest) is None


def test_helpers_work_from_threads(spark, url, append, tmp_path):
    """They write, too, and a new thread has no active session."""
    for _ in range(2):
        append(spark.range(3))
    assert in_a_new_thread(segstore.spark.open(spark, url).compact).groups == 1
    target = f"file://{tmp_path}/copied"
    assert in_a_new_thread(lambda: segstore.spark.copy(spark, url, target, "c")).end == 6


@pytest.mark.slow
@pytest.mark.smoke
def test_twenty_jobs_at_once_lose_nothing(untuned, url, load):
    """Each is one commit, whose events stand together and in order; one that fails is none."""
    segstore.create(url, pa.schema([("id", pa.int64())]))

    def one(n: int) -> None:
        df = untuned.range(n * 1000, n * 1000 + 300, 1, 2)
        given = {"inlineBytes": 0 if n % 2 else "64k", "writerId": f"job{n}", "batchId": 1}
        if n == 20:
            with pytest.raises(AnalysisException):
                segstore.spark.write(df, url, compresion="zstd")
        else:
            segstore.spark.write(df, url, **given)

    with ThreadPoolExecutor(21) as pool:
        list(pool.map(one, range(21)))
    assert untuned.conf.get(SIZING, None) is None
    rows = sorted(load(offsetColumn="o").collect(), key=lambda row: row.o)
    assert [row.o for row in rows] == list(range(6000))
    firsts = [rows[start].id for start in range(0, 6000, 300)]
    assert sorted(firsts) == list(range(0, 20_000, 1000))
    assert [row.id for row in rows] == [first + n for first in firsts for n in range(300)]


def test_a_tuned_write_takes_the_values_of_python(spark, url):
    options = {"statsColumns": ["b"], "createIfMissing": True, "storageOptions": {}}
    options["batchId"] = None
    df = spark.range(5).selectExpr("id AS a", "id AS b").coalesce(1)
    segstore.spark.write(df, url, inlineBytes=0, **options)
    [segment] = segstore.open(url).segments().read_all().to_pylist()
    assert (segment["stats"], segment["end"]) == ('{"int:b":[0,4,0]}', 5)


def test_a_large_write_says_what_to_call_unless_it_is_tuned(sessions, untuned, url):
    start = sessions.log.stat().st_size
    large = untuned.range(0, workers.MANY_ROWS, 1, 2)
    large.limit(10).write.format("segstore").mode("append").save(url)
    segstore.spark.write(large, url)
    large.write.format("segstore").mode("append").save(url)
    deadline = time.monotonic() + 300
    told = b"Spark measured each row of this write"
    while told not in (text := sessions.log.read_bytes()[start:]):
        assert time.monotonic() < deadline  # the JVM copies what workers print
        time.sleep(0.05)
    assert text.count(told) == 1


def test_a_process_says_once_that_writes_are_slow(caplog):
    """However the rows are spread over the batches of a query."""
    advice = workers.Advice()
    for rows in (workers.MANY_ROWS - 1, 0, 1, workers.MANY_ROWS, 1):
        advice.add(rows)
    [record] = caplog.records
    assert "segstore.spark.register(spark)" in record.getMessage()
