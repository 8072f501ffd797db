"""Sessions: the registered format, the settings that make it fast, views, and one tuned write.

A setting that the user has chosen is never changed, and no plan or option shows storage options.
"""

import json
import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import uuid4

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from segstore_ds import Commit
from segstore_ds.errors import InvalidInputError, SegstoreError
from segstore_ds.options.table import WRITE, parse_options
from segstore_ds.spark.batch.planning import NO_PATH, storage_of
from segstore_ds.spark.boundary import translate_errors
from segstore_ds.spark.option_texts import HelperNotes, as_location, as_texts
from segstore_ds.spark.source import SegstoreDataSource
from segstore_ds.spark.versions import activate_if_none, activated, quiet_replacing
from segstore_ds.spark.workers import BATCH_SIZING
from segstore_ds.stream.connector.jobs import find_write

_LOG = logging.getLogger(__name__)

NO_BATCH_SIZING = "2147483647"
_GLOB = re.compile(r"[\\\[\]{}*?]")  # what a batch read of Spark takes for a pattern
_COST = (
    "Spark measures every Arrow batch after every row, which takes two thirds of the write "
    "throughput; with this setting it does not. Batches are then bounded only by "
    "spark.sql.execution.arrow.maxRecordsPerBatch (10000 rows): with rows of 30 kB that is "
    "300 MB per task, so lower it for wide rows."
)
_BUILDER_SETTINGS: Mapping[str, str] = {
    # Tasks talk to Python over unix sockets, which are faster than TCP, even without its delays.
    "spark.python.unix.domain.socket.enabled": "true",
    BATCH_SIZING: NO_BATCH_SIZING,
}


@dataclass(frozen=True, slots=True)
class Registration:
    """What `register` set in a session; as text, with the cost. Settings of the user stay."""

    settings: Mapping[str, str]

    def __str__(self) -> str:
        lines = [f"{name}={value}: {_COST}" for name, value in self.settings.items()]
        return "\n".join(lines) or "nothing was set: the session's own settings stay"


def register(
    spark: SparkSession, storage_options: Mapping[str, Any] | None = None, *, tune: bool = True
) -> Registration:
    """Register the format `segstore` in a session and tune the session for it.

    Safe to repeat; the last storage options hold. Works with Spark Connect. If the calling thread
    has no active session, this one becomes it, so that `df.write.save()` finds the format; in other
    threads use `activated`.

    Args:
        spark: The session. Others, also those made by `newSession()`, do not change.
        storage_options: For the filesystem, in this session: the driver and the tasks get them, and
            they appear in no plan, option or event log. Flat or keyed by URL prefix; `env:NAME`
            values are read where they are used, so executors need the variable.
        tune: Set what makes the format fast, unless the session has a value of its own.

    Returns:
        What was set, and what that costs; prints as text.

    Raises:
        InvalidInputError: The storage options are not a mapping; or they can't be bound to the
            session, as in Spark 4.0 where the package is installed.

    Examples:
        >>> _ = segstore.spark.register(spark)
        >>> spark.read.format("segstore").load(stream.url).count()
        3
    """
    if storage_options is not None and not isinstance(storage_options, Mapping):
        raise InvalidInputError(
            "storage options are not a mapping",
            remedy="give a dict",
            type=type(storage_options).__name__,
        )
    activate_if_none(spark)
    # Spark looks in the active session for the name, and refuses one that another session has.
    quiet_replacing(spark, SegstoreDataSource.name())
    source = _bound_class(storage_options, spark.conf.get("spark.app.id", None))
    with activated(spark):
        try:
            spark.dataSource.register(source)
        except AnalysisException as error:
            # Spark 4.0 does not replace an installed format, which works as well.
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
            if storage_options:
                raise InvalidInputError(
                    "Spark 4.0 can't bind storage options to a session if the package is installed",
                    remedy="give each read and write the option storageOptions, or set the "
                    "filesystem's own variables, such as AWS_ACCESS_KEY_ID",
                ) from error
    _bind(spark, storage_options)
    chosen = {}
    if tune and spark.conf.get(BATCH_SIZING, None) is None:
        spark.conf.set(BATCH_SIZING, NO_BATCH_SIZING)
        chosen[BATCH_SIZING] = NO_BATCH_SIZING
    return Registration(chosen)


def recommended_conf() -> dict[str, str]:
    """Return all settings that make the format fast, for a session's builder.

    `register` then has nothing to set. With these settings Spark no longer measures each row that
    is written, so only `spark.sql.execution.arrow.maxRecordsPerBatch` bounds a batch: set it lower
    for rows of tens of kilobytes.

    Returns:
        Spark's names and values, all texts.

    Examples:
        >>> from pyspark.sql import SparkSession
        >>> builder = SparkSession.builder.config(map=segstore.spark.recommended_conf())
    """
    return dict(_BUILDER_SETTINGS)


@translate_errors
def write(
    df: DataFrame, url: str | os.PathLike[str], *, mode: str = "append", **options: Any
) -> Commit | None:
    """Write a DataFrame to a stream in one commit, with the fast settings for just this write.

    All rows are durable and visible when it returns, or none. With `writerId` and `batchId` it is
    safe to repeat. The session's settings are restored afterwards, also if writes overlap in
    several threads. It works in any thread, also where `df.write.save()` does not find the format.

    Args:
        df: The rows.
        url: The stream.
        mode: ``append`` or ``overwrite``.
        options: Those of writes in docs/options.md, for example ``writerId="etl"``; values
            may be Python's (lists, mappings, numbers).

    Returns:
        The commit, with the offsets that the events got. It is looked up in the stream afterwards:
        None, with a warning in the log, if this process can't read the stream, for example with
        Spark Connect.

    Raises:
        InvalidInputError: Another mode, or not a location.
        pyspark.errors.PySparkException: The write failed; the text names our error and the remedy.

    Examples:
        >>> more = spark.createDataFrame([("ada", 4)], "user string, n bigint")
        >>> segstore.spark.write(more, stream.url, writerId="etl", batchId=7).start
        3
        >>> segstore.spark.write(more, stream.url, writerId="etl", batchId=7).repeated
        True
    """
    if mode not in ("append", "overwrite"):
        raise InvalidInputError("unknown mode", remedy="use append or overwrite", mode=mode)
    location, given, transaction = as_location(url), as_texts(options), uuid4().hex
    save(df, location, mode, given | HelperNotes(transaction=transaction).as_options())
    try:
        return _find_commit(df.sparkSession, {**given, "path": location}, transaction)
    except SegstoreError as error:
        _LOG.warning("the write succeeded, but its commit can't be looked up: %s", error)
        return None


@translate_errors
def write_batch(
    df: DataFrame,
    batch_id: int,
    url: str | os.PathLike[str],
    *,
    checkpoint: str,
    name: str = "batches",
    **options: Any,
) -> Commit | None:
    """Write a micro-batch from within `foreachBatch`; a repeated batch changes nothing.

    The writer id consists of the name and the query's id, which is in its checkpoint. So a query
    with a new checkpoint is a new writer. It works through Spark Connect as well, which does not
    tell the function which query runs it.

    Args:
        df: The rows, as Spark gives them to the function, or what you make of them.
        batch_id: The batch's number, as Spark gives it to the function.
        url: The stream.
        checkpoint: The query's `checkpointLocation`.
        name: Name of this write, if one query writes several times to one stream.
        options: As for `write`, except ``writerId`` and ``batchId``.

    Returns:
        The commit, as `write` returns it.

    Raises:
        InvalidInputError: The folder is no checkpoint of a query.
        pyspark.errors.PySparkException: The write failed; the text names our error and the remedy.

    Examples:
        >>> target, at = f"{stream.url}-kept", f"{stream.url}-at"
        >>> def keep(batch, batch_id):
        ...     segstore.spark.write_batch(batch, batch_id, target, checkpoint=at)
        >>> rows = spark.readStream.format("segstore").load(stream.url)
        >>> query = rows.writeStream.foreachBatch(keep).option("checkpointLocation", at)
        >>> query.trigger(availableNow=True).start().awaitTermination()
        >>> segstore.open(target).tail
        3
    """
    try:
        path = _GLOB.sub(r"\\\g<0>", f"{checkpoint}/metadata")
        text = df.sparkSession.read.text(path).collect()[0].value
        query_id = json.loads(text)["id"]
    except (AnalysisException, ValueError, LookupError, TypeError) as error:
        raise InvalidInputError(
            "the folder is no checkpoint of a streaming query",
            remedy="give the checkpointLocation of the query that calls this",
            checkpoint=checkpoint,
        ) from error
    return write(df, url, writerId=f"{name}-{query_id}", batchId=batch_id, **options)


def save(df: DataFrame, location: str, mode: str, texts: Mapping[str, str]) -> None:
    """Write a DataFrame with the fast settings and with options in Spark's form."""
    spark = df.sparkSession
    with activated(spark), _tuned(spark):
        df.write.format("segstore").mode(mode).options(**texts).save(location)


def _find_commit(spark: SparkSession, texts: Mapping[str, str], transaction: str) -> Commit | None:
    parsed = parse_options(texts, WRITE)
    storage = storage_of(bound_source(spark)(texts), parsed)
    return find_write(storage, transaction, parsed["writerId"], parsed["batchId"])


def bound_source(spark: SparkSession) -> type[SegstoreDataSource]:
    """Return the format as `register` bound it to this session, or to the session of its clone."""
    key = spark.conf.get(_BOUND, None)
    if key is None:
        return SegstoreDataSource
    if key not in _bound_options:
        raise InvalidInputError(
            "another process bound storage options to this session",
            remedy="call segstore.spark.register(spark, storage_options=...) in this one too",
        )
    return _bound_class(_bound_options[key])


# A setting that holds only the key of the bound options. Spark clones the session for each
# streaming query; the clone has the settings, and the query's batches know only the clone.
_BOUND = "spark.segstore.bound"
_bound_options: dict[str, Mapping[str, Any]] = {}


def _bind(spark: SparkSession, storage_options: Mapping[str, Any] | None) -> None:
    key = spark.conf.get(_BOUND, None)
    if storage_options is not None:
        key = key or uuid4().hex
        _bound_options[key] = dict(storage_options)
        spark.conf.set(_BOUND, key)
    elif key is not None:
        spark.conf.unset(_BOUND)


def _bound_class(
    storage_options: Mapping[str, Any] | None, application: str | None = None
) -> type[SegstoreDataSource]:
    if storage_options is None and not application:
        return SegstoreDataSource
    bound = None if storage_options is None else dict(storage_options)

    # A new class is pickled by value, so the storage options are in no plan and no option.
    class BoundSegstoreDataSource(SegstoreDataSource):
        bound_storage_options: ClassVar[Mapping[str, Any] | None] = bound
        bound_application: ClassVar[str | None] = application

    return BoundSegstoreDataSource


_tuning_lock = threading.Lock()
_tuning_users: dict[int, int] = {}


@contextmanager
def _tuned(spark: SparkSession) -> Iterator[None]:
    """Tune a session while at least one write runs; the last write restores the setting."""
    key = id(spark)
    with _tuning_lock:
        users = _tuning_users.get(key, 0)
        ours = users > 0 or spark.conf.get(BATCH_SIZING, None) is None
        if ours:
            _tuning_users[key] = users + 1
            spark.conf.set(BATCH_SIZING, NO_BATCH_SIZING)
    try:
        yield
    finally:
        with _tuning_lock:
            if ours:
                _tuning_users[key] -= 1
                if not _tuning_users[key]:
                    del _tuning_users[key]
                    spark.conf.unset(BATCH_SIZING)


TABLE_SUFFIX = "__columns"
_REFUSED = ("path", "versionAsOf", "timestampAsOf", "storageOptions")


@translate_errors
def create_view(
    spark: SparkSession,
    name: str,
    url: str | os.PathLike[str],
    *,
    replace: bool = False,
    **options: Any,
) -> None:
    """Create a view of a stream that lasts as long as the catalog: ``SELECT * FROM clicks``.

    Each query reads the newest events, in this session and in later ones, which need the package
    installed, or `register`. The view has the columns that the stream has now: if the stream gets
    new ones, create the view again. Spark takes the columns from an empty table beside the view,
    ``clicks__columns``; SQL writes through that table:
    ``INSERT INTO clicks__columns WITH (path = '...') ...``.

    Args:
        spark: The session. Without a persistent catalog, such as Hive's, views end with it.
        name: As in SQL, also qualified: ``clicks``, ``db.clicks``.
        url: The stream.
        replace: Drop a view of this name, and its table, first; streams stay.
        options: Those of reads in docs/options.md, which become part of the view, for example
            ``startCut=10``.

    Raises:
        InvalidInputError: A view can't keep one of the options.
        pyspark.errors.AnalysisException: There is such a view or table already, or no stream.

    Examples:
        >>> segstore.spark.create_view(spark, "clicks", stream.url)
        >>> spark.sql("SELECT user FROM clicks WHERE n > 2").first()
        Row(user='eve')
    """
    url, given = as_location(url), as_texts(options)
    if refused := [option for option in _REFUSED if option in given]:
        raise InvalidInputError(
            "a view can't keep the option",
            remedy='name a version as endCut="version:3"; storage options are given to register',
            options=refused,
        )
    quoted = name.endswith("`")
    table = f"{name.removesuffix('`')}{TABLE_SUFFIX}{'`' * quoted}"
    schema = spark.read.format("segstore").options(**given).load(url).schema
    if replace:
        spark.sql(f"DROP VIEW IF EXISTS {name}")
        spark.sql(f"DROP TABLE IF EXISTS {table}")
    try:
        spark.catalog.createTable(table, source="segstore", schema=schema)
    except PySparkException as error:
        if NO_PATH not in str(error):  # Spark Connect also reads the new table, without a path
            raise
    kept = ", ".join(f"{key} = {_quote(value)}" for key, value in {"path": url, **given}.items())
    try:
        spark.sql(f"CREATE VIEW {name} AS SELECT * FROM {table} WITH ({kept})")  # noqa: S608 - quoted
    except PySparkException:
        spark.sql(f"DROP TABLE {table}")
        raise


def _quote(text: str) -> str:
    r"""Return a text as a literal of Spark's SQL.

    >>> _quote("it's")
    "'it\\'s'"
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
