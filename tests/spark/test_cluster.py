"""Executors in JVMs of their own, S3 over HTTP, and keys that only the session knows."""

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from checkpoints import start_query
from fixtures_s3 import S3Server
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from sessions import Sessions, error_of

import segstore_ds as segstore

pytestmark = pytest.mark.slow

ENV_NAME = "SEGSTORE_TEST_S3_SECRET"


@pytest.fixture(scope="module")
def other_server(s3_server: S3Server) -> S3Server:
    """The same server under other keys, which executors find in their environment."""
    return S3Server(s3_server.endpoint, "other-key", "other-secret-5b1f9c", s3_server.log)


@pytest.fixture(scope="module")
def cluster(sessions: Sessions, other_server: S3Server) -> Iterator[SparkSession]:
    """local-cluster with an event log; executors get PYTHONPATH and one variable explicitly."""
    os.environ[ENV_NAME] = other_server.secret  # for the driver's planners
    yield sessions.get(
        "cluster",
        {
            "spark.executor.memory": "512m",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",  # to be searched
            "spark.eventLog.dir": sessions.events.as_uri(),
            "spark.executorEnv.PYTHONPATH": os.pathsep.join(
                [str(Path(segstore.__file__).parents[1]), str(Path(__file__).parent)]
            ),
            f"spark.executorEnv.{ENV_NAME}": other_server.secret,
        },
    )
    del os.environ[ENV_NAME]


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    return s3_server.new_bucket()


def test_local_disk_on_executors_of_their_own(cluster, sessions, s3_server, tmp_path):
    url = f"file://{tmp_path}/stream"
    segstore.spark.register(cluster)

    def note(batches):
        for _ in batches:
            inside = {"folder": str(Path.cwd()), "environment": json.dumps(dict(os.environ))}
            yield pa.RecordBatch.from_pylist([inside])

    noted = cluster.range(0, 40, 1, 8).mapInArrow(note, "folder string, environment string")
    for row in noted.collect():
        assert Path(row.folder).is_relative_to(sessions.executor_logs)
        assert s3_server.secret not in row.environment  # so no later test succeeds by it
    df = cluster.range(0, 1000, 1, 4)
    df.write.format("segstore").mode("append").option("inlineBytes", 0).save(url)
    segstore.spark.write(df, url)
    back = cluster.read.format("segstore").option("minPartitions", 4).load(url)
    assert (back.count(), back.filter("id < 10").count()) == (2000, 20)
    assert segstore.open(url).verify().check().leftovers == []


def test_keys_bound_to_the_session_leave_no_secret(cluster, sessions, s3_server, bucket, capfd):
    url = f"s3a://{bucket}/streams/clicks"
    options = {
        "key": s3_server.key,
        "secret": s3_server.secret,
        "client_kwargs": {"endpoint_url": s3_server.endpoint},
    }
    said = segstore.spark.register(cluster, storage_options=options)
    texts = [str(said), repr(said)]
    df = cluster.range(0, 1000, 1, 4).selectExpr("id", "concat('user', id % 7) AS user")
    for batch in (1, 1, 2):
        writer = df.write.format("segstore").mode("append").option("inlineBytes", 0)
        writer.options(writerId="etl", batchId=batch).save(url)
    segstore.spark.write(df, url)  # inline frames
    back = cluster.read.format("segstore").option("offsetColumn", "o").load(url)
    assert sorted(row.o for row in back.collect()) == list(range(3000))
    cluster.sql(
        "CREATE OR REPLACE TEMPORARY VIEW clicks USING segstore " + f"OPTIONS (path '{url}')"
    )
    assert cluster.sql("SELECT count(*) FROM clicks WHERE user = 'user3'").first()[0] == 429
    texts += [_explained(back, capfd), _explained(cluster.table("clicks"), capfd)]
    texts += _provoked_errors(cluster, s3_server, url, df)
    stream = segstore.open(url, storage_options=options)
    texts += [repr(stream), str(stream.verify().check())]
    secret_texts = [s3_server.secret, base64.b64encode(s3_server.secret.encode()).decode()]
    where = {
        "errors and plans": "\n".join(texts).encode(),
        "output of the driver": sessions.log.read_bytes(),
        "event log": b"".join(_contents(sessions.events)),
        "output of executors": b"".join(_contents(sessions.executor_logs)),
        "stream": b"".join(_objects(stream)),
    }
    assert b"SparkListenerSQLExecutionStart" in where["event log"]
    assert where["output of executors"]
    assert len(where["stream"]) > 3000
    for place, content in where.items():
        for text in secret_texts:
            assert text.encode() not in content, place


def test_streams_over_s3_with_keys_bound_to_the_session(
    cluster, sessions, s3_server, bucket, tmp_path
):
    """Sink and source run on executors without keys, which no log gets to hold."""
    options = {
        "key": s3_server.key,
        "secret": s3_server.secret,
        "endpoint_url": s3_server.endpoint,
    }
    segstore.spark.register(cluster, storage_options=options)
    source_url, target_url = f"s3://{bucket}/source", f"s3a://{bucket}/target"
    source = segstore.create(source_url, pa.schema([("id", pa.int64())]), storage_options=options)
    for start in (0, 50):
        source.append(pa.table({"id": range(start, start + 50)}))
        loaded = cluster.readStream.format("segstore").option("maxRowsPerTrigger", 20)
        writer = loaded.load(source_url).writeStream.format("segstore")
        start_query(writer.option("path", target_url), str(tmp_path / "checkpoint"), now=True)
        target = segstore.open(target_url, storage_options=options)
        assert target.read().read_all()["id"].to_pylist() == list(range(start + 50))
    assert target.verify().check().leftovers == []
    for place in (sessions.events, sessions.executor_logs, tmp_path / "checkpoint"):
        assert all(s3_server.secret.encode() not in content for content in _contents(place))
    assert s3_server.secret.encode() not in b"".join(_objects(target))


def _explained(df, capfd) -> str:
    capfd.readouterr()
    df.explain("extended")
    return capfd.readouterr().out


def _provoked_errors(spark: SparkSession, server: S3Server, url: str, df) -> list[str]:
    """Errors of every layer; their texts."""
    texts = []

    def fails(action) -> None:
        texts.append(error_of(action))

    read = spark.read.format("segstore")
    write = df.write.format("segstore").mode("append")
    fails(lambda: write.save("s3://no-such-bucket-here/x"))
    fails(lambda: read.option("startCut", 10**9).load(url).count())
    refused = {"endpoint_url": "http://127.0.0.1:9", "key": server.key, "secret": server.secret}
    other = spark.newSession()
    segstore.spark.register(other, storage_options={**refused, "config_kwargs": _IMPATIENT})
    fails(lambda: other.read.format("segstore").load(url))
    segstore.spark.register(other, storage_options={"client_kwargs": {"bad": server.secret}})
    fails(lambda: other.read.format("segstore").load(url))
    for text in texts:
        assert "SEG_" in text
    return texts


_IMPATIENT = {"connect_timeout": 1, "retries": {"max_attempts": 1}}


def _contents(folder: Path) -> Iterator[bytes]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.read_bytes()


def _objects(stream: segstore.Stream) -> Iterator[bytes]:
    for info in stream._log.storage.list(""):
        yield info.path.encode() + stream._log.storage.get(info.path)


def test_named_keys_come_from_each_process_environment(cluster, other_server, bucket):
    url = f"s3://{bucket}/env"
    segstore.spark.register(
        cluster,
        storage_options={
            f"s3://{bucket}": {
                "key": other_server.key,
                "secret": f"env:{ENV_NAME}",
                "endpoint_url": other_server.endpoint,
            },
            "s3://elsewhere": {"secret": "env:SEGSTORE_NO_SUCH"},
        },
    )
    df = cluster.range(0, 100, 1, 2)
    df.write.format("segstore").mode("append").option("inlineBytes", 0).save(url)
    assert cluster.read.format("segstore").load(url).count() == 100
    with pytest.raises(AnalysisException, match="SEGSTORE_NO_SUCH"):
        cluster.read.format("segstore").load("s3://elsewhere/x")
