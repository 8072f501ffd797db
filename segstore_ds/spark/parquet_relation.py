"""Parquet files that Spark reads by itself: exactly those named, without listing anything.

It talks to the JVM, so it needs a classic session. Spark keeps a list
of files for each folder that it has seen; here such a list is made by hand and Spark finds it under
an address that can't be listed. So no other file can get into the scan, and whatever makes Spark
list again (`REFRESH`) is a loud error. A file's time of modification, which Spark uses for nothing
but the column `_metadata.file_modification_time`, carries the offset of its first event: so offsets
cost no join.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from segstore_ds.spark.session import find_jvm
from segstore_ds.storage.locations import Location

MAX_START = (1 << 63) // 1_000 - 1  # Spark keeps milliseconds as microseconds
START = "unix_millis(_metadata.file_modification_time)"  # the offset of the file's first event
# Nullable, as the source's column is; the optimizer takes the condition away again.
OFFSET = f"CASE WHEN _metadata.row_index IS NOT NULL THEN {START} + _metadata.row_index END"
# Hadoop knows the scheme, and that nothing can be listed there.
_NOWHERE = "http://segstore.invalid"
_BLOCK_BYTES = 128 << 20
_SCHEMES = {"file": ("file",), "s3": ("s3", "s3a"), "gs": ("gs",), "abfs": ("abfss", "abfs")}
_OPTIONS = {
    "recursiveFileLookup": "true",
    # Whatever the session says: a file that is gone or damaged must not vanish from a sum.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    # Whatever the session says: dates and times are stored as they are.
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "mergeSchema": "false",
    "parquet.page.verify-checksum.enabled": "true",
}
_FIELDS = {"isdir": False, "block_replication": 1, "blocksize": _BLOCK_BYTES}


@dataclass(frozen=True, slots=True)
class NativeFile:
    """A Parquet file of a stream.

    Attributes:
        path: Relative to the stream.
        start: Offset of its first event.
        bytes: Its size.
    """

    path: str
    start: int
    bytes: int


class UnreachableError(Exception):
    """Spark can't read these files itself; says why. Never leaves this package."""


def find_base(spark: SparkSession, location: Location, probe: NativeFile) -> str:
    """Return the stream's address as Hadoop reads it, after a look at one file.

    Raises:
        UnreachableError: The session is Spark Connect's, or Spark does not see the file.
    """
    reasons = []
    insides = _insides(spark)
    rest = location.path if location.scheme == "file" else location.url.partition(":")[2]
    for scheme in _SCHEMES.get(location.scheme, ()):
        base = f"{scheme}:{rest}"
        try:
            size = _find_size(insides, f"{base}/{probe.path}")
        except (Py4JError, PySparkException) as error:
            reasons.append(f"{scheme}: {_reason(error)}")
            continue
        if size == probe.bytes:
            return base
        reasons.append(f"{scheme}: a file has {size} bytes instead of {probe.bytes}")
    raise UnreachableError("; ".join(reasons) or f"it knows no {location.scheme}://")


def open_files(
    spark: SparkSession, base: str, files: Sequence[NativeFile], schema: StructType, name: str
) -> DataFrame:
    """Return the rows of some Parquet files; sends no request.

    Args:
        spark: A classic session.
        base: From `find_base`.
        files: At least one.
        schema: Columns to read; a file that lacks one has nulls there.
        name: What plans call it.

    Raises:
        UnreachableError: This Spark is not made as the ones we know.
    """
    try:
        return _open_files(spark, base, files, schema, name)
    except (Py4JError, PySparkException, TypeError) as error:
        raise UnreachableError(f"its internals are not as expected: {_reason(error)}") from error


def _open_files(
    spark: SparkSession, base: str, files: Sequence[NativeFile], schema: StructType, name: str
) -> DataFrame:
    jvm, session = _insides(spark)
    sources = jvm.org.apache.spark.sql.execution.datasources
    place = jvm.org.apache.hadoop.fs.Path(f"{_NOWHERE}/{name}")
    # A cache of our own: the session's may be off, or drop the list before it is asked.
    cache = sources.SharedInMemoryCache(1 << 62, -1).createForNewClient()
    cache.putLeafFiles(place, _make_statuses(jvm, base, files))
    options = jvm.PythonUtils.toScalaMap(_OPTIONS)
    columns = jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
    nothing = jvm.scala.Option.empty()
    index = sources.InMemoryFileIndex(
        session,
        jvm.PythonUtils.toSeq([place]),
        options,
        jvm.scala.Option.apply(columns),
        cache,
        nothing,
        nothing,
    )
    relation = sources.HadoopFsRelation(
        index,
        jvm.org.apache.spark.sql.types.StructType(),
        columns,
        nothing,
        sources.parquet.ParquetFileFormat(),
        options,
        session,
    )
    return DataFrame(session.baseRelationToDataFrame(relation), spark)


def _make_statuses(jvm: Any, base: str, files: Sequence[NativeFile]) -> Any:
    """Make Hadoop's descriptions of all files in one call; one each would take seconds."""
    values = [
        {
            "path": f"{base}/{file.path}",
            "length": file.bytes,
            "modification_time": file.start,
            **_FIELDS,
        }
        for file in files
    ]
    json_classes = jvm.com.fasterxml.jackson
    find = jvm.java.lang.Class.forName
    levels = find("com.fasterxml.jackson.annotation.JsonAutoDetect$Visibility").getEnumConstants()
    visible = {str(level): level for level in levels}
    accessors = json_classes.annotation.PropertyAccessor
    mapper = json_classes.databind.ObjectMapper()
    mapper.setVisibility(accessors.ALL, visible["NONE"])
    mapper.setVisibility(accessors.FIELD, visible["ANY"])
    mapper.setVisibility(accessors.CREATOR, visible["ANY"])
    return mapper.readValue(json.dumps(values), find("[Lorg.apache.hadoop.fs.FileStatus;"))


def _insides(spark: SparkSession) -> tuple[Any, Any]:
    found = find_jvm(spark)
    if found is None:
        raise UnreachableError("the session is Spark Connect's")
    return found


def _find_size(insides: tuple[Any, Any], url: str) -> int:
    jvm, session = insides
    path = jvm.org.apache.hadoop.fs.Path(url)
    settings = session.sessionState().newHadoopConf()
    return int(path.getFileSystem(settings).getFileStatus(path).getLen())


def _reason(error: Exception) -> str:
    """Return one line of an error of the JVM."""
    thrown = getattr(error, "java_exception", None)
    text = thrown.toString() if thrown is not None else str(error)
    return str(text).partition("\n")[0][:300]
