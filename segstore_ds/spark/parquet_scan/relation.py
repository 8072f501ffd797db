"""Parquet files that Spark reads by itself: exactly the named ones, without listing anything.

This module talks to the JVM, so it needs a classic session. Spark keeps a list of files for each
folder that it has seen. Here such a list is made by hand, and Spark finds it under an address that
can't be listed. So no other file can get into the scan, and anything that makes Spark list again
(`REFRESH`) is an error. Spark uses a file's modification time only for the column
`_metadata.file_modification_time`; here it carries the offset of the file's first event, so offsets
need no join.

Spark treats two lists under one address as equal and would answer one scan from the cache, the
exchange or the subquery of the other. So the address contains a digest of the list.
"""

import hashlib
import json
from collections.abc import Collection, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from segstore_ds.spark.parquet_scan.native import holds_floats
from segstore_ds.spark.versions import Py4JError, find_jvm
from segstore_ds.stream.connector.reads import ParquetFile, resolve_location

MAX_START = (1 << 63) // 1_000 - 1  # Spark keeps milliseconds as microseconds
_START = "unix_millis(_metadata.file_modification_time)"  # the offset of the file's first event
# Nullable, as the source's column is; the optimizer removes the condition again.
OFFSET = f"CASE WHEN _metadata.row_index IS NOT NULL THEN {_START} + _metadata.row_index END"
# Hadoop knows this scheme and can't list anything under it.
_NOWHERE = "http://segstore.invalid"
_SCHEMES = {"file": ("file",), "s3": ("s3", "s3a"), "gs": ("gs",), "abfs": ("abfss", "abfs")}
_MISSING = "java.io.FileNotFoundException"
_OPTIONS = {
    "recursiveFileLookup": "true",
    "ignoredPathSegmentRegex": "^[._]",  # with another value Spark would not use our list
    # Overrides the session: a missing or damaged file must not vanish from a sum.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    # Overrides the session: dates and times are stored without rebasing.
    "datetimeRebaseMode": "CORRECTED",
    # No effect today (no segment has INT96 times, the schema is given); set to keep it so.
    "int96RebaseMode": "CORRECTED",
    "mergeSchema": "false",
    "parquet.page.verify-checksum.enabled": "true",
}


class UnreachableError(Exception):
    """Spark can't read these files itself; the text says why, `kind` does without naming a file."""

    def __init__(self, reason: str, kind: str) -> None:
        super().__init__(reason)
        self.kind = kind


def find_base(spark: SparkSession, url: str, probe: ParquetFile) -> str:
    """Return the stream's address as Hadoop reads it, after probing one file.

    Raises:
        UnreachableError: The session is Spark Connect's, or Spark does not see the file.
    """
    reasons: dict[str, str] = {}
    location = resolve_location(url)
    session, known = _internals(spark)[1], _classes(spark)
    rest = location.path if location.scheme == "file" else location.url.partition(":")[2]
    for scheme in _SCHEMES.get(location.scheme, ()):
        base = f"{scheme}:{rest}"
        try:
            size = _find_size(session, known.path(f"{base}/{probe.path}"))
        except (Py4JError, PySparkException) as error:
            reason = _reason(error)
            kind = reason.partition(":")[0]
            if kind == _MISSING:
                reason = f"a segment is missing, verify() says more: {reason}"
            reasons[f"{scheme}: {kind}"] = f"{scheme}: {reason}"
            continue
        if size == probe.bytes:
            return base
        reasons[f"{scheme}: {_MISSING}"] = (
            f"{scheme}: a segment has {size} bytes instead of {probe.bytes}, verify() says more: "
            f"{probe.path}"
        )
    if not reasons:
        raise UnreachableError(f"it has no filesystem for {location.scheme}://", location.scheme)
    raise UnreachableError("; ".join(reasons.values()), "; ".join(reasons))


def open_files(
    spark: SparkSession,
    base: str,
    files: Sequence[ParquetFile],
    schema: StructType,
    *,
    name: str,
    unpushed: Collection[str] = (),
) -> DataFrame:
    """Return the rows of some Parquet files; sends no request.

    `base` comes from `find_base`; `files` holds at least one; a file that lacks a column of
    `schema` has nulls there. Plans show `name`. No filter is pushed down on `unpushed` columns, nor
    on columns that hold floats.
    """
    try:
        frame = _open_files(spark, base, files, schema, name)
        names = [
            field.name for field in schema if field.name in unpushed or holds_floats(field.dataType)
        ]
        frame = _guard(_classes(spark), frame, names)
    except (Py4JError, PySparkException, TypeError) as error:
        raise _incompatible(error) from error
    return DataFrame(frame, spark)


def _open_files(
    spark: SparkSession, base: str, files: Sequence[ParquetFile], schema: StructType, name: str
) -> Any:
    session, known = _internals(spark)[1], _classes(spark)
    listed = _describe(base, files)
    digest = hashlib.blake2b(listed.encode(), digest_size=16).hexdigest()
    place = known.path(f"{_NOWHERE}/{name}/{digest}")
    # A cache of our own: the session's may be off, or evict the list before it is used.
    cache = known.cache(1 << 62, -1).createForNewClient()
    # One call describes all files to Hadoop; a call for each would take seconds.
    cache.putLeafFiles(place, known.mapper.readValue(listed, known.statuses))
    columns = known.data_type.fromJson(schema.json())
    index = known.index(
        session,
        known.utils.toSeq([place]),
        known.options,
        known.option.apply(columns),
        cache,
        known.nothing,
        known.nothing,
    )
    relation = known.relation(
        index, known.no_columns, columns, known.nothing, known.parquet, known.options, session
    )
    return session.baseRelationToDataFrame(relation)


def _describe(base: str, files: Sequence[ParquetFile]) -> str:
    values = [
        f'{{"path":{json.dumps(f"{base}/{file.path}")},"length":{file.bytes},'
        f'"modification_time":{file.start}}}'
        for file in files
    ]
    return f"[{','.join(values)}]"


def _guard(known: "_Classes", frame: Any, names: Sequence[str]) -> Any:
    """Return the rows, with no filter on some columns pushed down to the files.

    A dictionary stores 0.0 and -0.0 as two values, which Spark treats as equal, so a pushed-down
    filter on floats would lose rows. Marking a column "may be null" changes no value and costs
    nothing, and Spark pushes down filters on columns, not on expressions.
    """
    if not names:
        return frame
    columns = [
        known.expressions.column(known.nullable(known.attribute.quoted(name))) for name in names
    ]
    return frame.withColumns(known.utils.toSeq(names), known.utils.toSeq(columns))


class _Classes:
    """Spark's classes and constants, looked up once, since a look-up takes up to a millisecond.

    Its attributes belong to the JVM, not to a session.
    """

    def __init__(self, jvm: Any) -> None:
        hadoop, spark = jvm.org.apache.hadoop.fs, jvm.org.apache.spark
        sources, catalyst = spark.sql.execution.datasources, spark.sql.catalyst
        self.path = hadoop.Path
        self.utils = jvm.PythonUtils
        self.cache = sources.SharedInMemoryCache
        self.index = sources.InMemoryFileIndex
        self.relation = sources.HadoopFsRelation
        self.parquet = sources.parquet.ParquetFileFormat()
        self.data_type = spark.sql.types.DataType
        self.no_columns = spark.sql.types.StructType()
        self.option = jvm.scala.Option
        self.nothing = self.option.empty()
        self.options = self.utils.toScalaMap(_OPTIONS)
        self.expressions = spark.sql.classic.ExpressionUtils
        self.nullable = catalyst.expressions.KnownNullable
        self.attribute = catalyst.analysis.UnresolvedAttribute
        find = jvm.java.lang.Class.forName
        self.statuses = find("[Lorg.apache.hadoop.fs.FileStatus;")
        self.mapper = _make_mapper(jvm, find)


def _make_mapper(jvm: Any, find: Any) -> Any:
    """Return a JSON mapper that sets fields by their names, since Hadoop's class has no setters."""
    json_classes = jvm.com.fasterxml.jackson
    levels = find("com.fasterxml.jackson.annotation.JsonAutoDetect$Visibility").getEnumConstants()
    visible = {str(level): level for level in levels}
    accessors = json_classes.annotation.PropertyAccessor
    mapper = json_classes.databind.ObjectMapper()
    mapper.setVisibility(accessors.ALL, visible["NONE"])
    mapper.setVisibility(accessors.FIELD, visible["ANY"])
    mapper.setVisibility(accessors.CREATOR, visible["ANY"])
    return mapper


_found: WeakKeyDictionary[Any, _Classes] = WeakKeyDictionary()


def _classes(spark: SparkSession) -> _Classes:
    jvm = _internals(spark)[0]
    found = _found.get(jvm)
    if found is None:
        try:
            found = _found[jvm] = _Classes(jvm)
        except (Py4JError, PySparkException, TypeError) as error:
            raise _incompatible(error) from error
    return found


def _incompatible(error: Exception) -> UnreachableError:
    reason = _reason(error)
    return UnreachableError(
        f"its internals are not as expected: {reason}", reason.partition(":")[0]
    )


def _internals(spark: SparkSession) -> tuple[Any, Any]:
    found = find_jvm(spark)
    if found is None:
        raise UnreachableError("the session uses Spark Connect", "Connect")
    return found


def _find_size(session: Any, path: Any) -> int:
    settings = session.sessionState().newHadoopConf()
    return int(path.getFileSystem(settings).getFileStatus(path).getLen())


def _reason(error: Exception) -> str:
    """Return one line of an error of the JVM."""
    thrown = getattr(error, "java_exception", None)
    text = thrown.toString() if thrown is not None else str(error)
    return str(text).partition("\n")[0][:300]
