"""Fixtures of the Spark tests; everything in this folder is marked `spark`."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import quick_python
from pyspark.sql import DataFrame, SparkSession
from query_kit import SCHEMA, numbers
from sessions import Sessions

import segstore_ds as segstore
from segstore_ds.spark.parquet_scan import read as hybrid

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark this folder's tests; warnings of Spark and its parts are no errors here."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def worker_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Python for Spark's workers, whose processes start quickly."""
    with quick_python.running(tmp_path_factory.mktemp("python")) as path:
        yield path


@pytest.fixture(scope="session")
def sessions(tmp_path_factory: pytest.TempPathFactory, worker_python: str) -> Iterator[Sessions]:
    """The one running session; its kind changes on demand."""
    running = Sessions(tmp_path_factory.mktemp("spark"), worker_python)
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def spark(sessions: Sessions) -> SparkSession:
    """A classic session on local[2,3] with the format registered, as users have it."""
    session = sessions.get("classic")
    segstore.spark.register(session)
    return session


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A location without a stream."""
    return f"file://{tmp_path}/stream"


@pytest.fixture
def stream(url: str) -> segstore.Stream:
    """A stream of three segments of ten events."""
    made = segstore.create(url, SCHEMA)
    for start in (0, 10, 20):
        made.append(numbers(start, start + 10))
    return made


@pytest.fixture
def append(url: str) -> Callable[..., None]:
    """Append a DataFrame to the stream at `url` with options."""

    def run(df: DataFrame, *, mode: str = "append", to: str = url, **options: object) -> None:
        df.write.format("segstore").mode(mode).options(**options).save(to)

    return run


@pytest.fixture
def load(spark: SparkSession, url: str) -> Callable[..., DataFrame]:
    """Load the stream at `url` with options."""

    def run(*, of: str = url, schema: object = None, **options: object) -> DataFrame:
        reader = spark.read.format("segstore").options(**options)
        return (reader.schema(schema) if schema is not None else reader).load(of)

    return run


@pytest.fixture(scope="module")
def large_scans() -> Iterator[None]:
    """Scans and jobs as of large streams: by the source, and by Spark's tasks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hybrid, "MOST_BYTES", -1)
        yield


@pytest.fixture
def verified(url: str) -> Iterator[None]:
    """Check every invariant of the stream at `url` after the test."""
    yield
    if segstore.exists(url):
        segstore.open(url).verify().check()
