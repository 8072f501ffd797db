"""The hybrid scan: Parquet-backed history by Spark's own reader, the rest here or by the source.

There is one plan, bound to one version. Spark gets Parquet segments as plain files, so it prunes
columns, pushes filters down and knows sizes. Arrow segments, and what Spark would not read exactly,
are read in this process if they are small, else through `format("segstore")`. One rule splits the
plan into the two halves, so each segment is in exactly one of them.

What is read here becomes a local table. For the source Spark starts Python processes, which takes
seconds after an idle minute, and it does not know how much they return. A local table needs no
process, and Spark broadcasts it if it is small.
"""

import os
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it
from pyspark.sql.types import StructField, StructType

from segstore_ds.errors import InvalidInputError
from segstore_ds.options.table import HYBRID, READ, parse_options, refuse_others
from segstore_ds.spark.batch.metadata_reader import STREAMS
from segstore_ds.spark.batch.planning import names_many, plan_reading, snapshot_of
from segstore_ds.spark.batch.slices import slice_batches
from segstore_ds.spark.boundary import translate_errors
from segstore_ds.spark.option_texts import NO_NOTES, HelperNotes, as_location, as_texts
from segstore_ds.spark.parquet_scan.native import (
    OFFSET_NAME,
    filter_column,
    find_native_epochs,
    find_unpushed,
    is_native_field,
    quote,
)
from segstore_ds.spark.parquet_scan.relation import (
    MAX_START,
    OFFSET,
    UnreachableError,
    find_base,
    open_files,
)
from segstore_ds.spark.schemas import from_stored
from segstore_ds.spark.session import bound_source
from segstore_ds.spark.versions import to_arrow
from segstore_ds.stream.connector.reads import ParquetFile, Snapshot
from segstore_ds.stream.connector.tasks import Reading, ReadTask

_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_MOST_SCANS = 256  # of `read_in_order`
_warned: set[str] = set()
MOST_BYTES = 16 << 20  # encoded
MOST_MEMORY = 64 << 20
_MOST_SEGMENTS = 256
_THREADS = 8


@dataclass(frozen=True, slots=True)
class _Scan:
    """What the halves of a scan share."""

    spark: SparkSession
    snapshot: Snapshot
    reading: Reading
    needed: StructType
    result: StructType


@translate_errors
def read(spark: SparkSession, url: str | os.PathLike[str], **options: Any) -> DataFrame:
    """Read a stream's events as a DataFrame, Parquet segments with Spark's own Parquet reader.

    It takes the options of ``spark.read.format("segstore")`` and returns the same rows and columns,
    as of the newest version or the requested one. Rows come in no particular order: sort by
    `offsetColumn` if you need one. Spark reads Parquet segments as plain files, without segstore's
    checksums. Other segments are read by this process at once if they are 16 MiB or less, and by
    the format `segstore` otherwise. If Spark can't reach the files, everything is read through the
    format, which is slower, and a warning says so once.

    Args:
        spark: The session.
        url: The stream.
        options: Those of reads in docs/options.md, for example ``startCut=10``; values may
            be Python's: lists, numbers, and in filters also dates, times, decimals and bytes.

    Returns:
        A DataFrame pinned to one version.

    Raises:
        SegstoreError: As `Stream.read`, or an option is not valid.
        pyspark.errors.PySparkException: The source failed; the text names our error.

    Examples:
        >>> events = segstore.spark.read(spark, stream.url, startCut=1, offsetColumn="offset")
        >>> events.orderBy("offset").collect()
        [Row(user='bob', n=2, offset=1), Row(user='eve', n=3, offset=2)]
    """
    url = as_location(url)
    given = as_texts(options)
    if "path" in given:
        raise InvalidInputError(
            "the location is given twice", remedy="remove path", url=url, **given
        )
    split = _split(spark, url, given)
    if split is None:
        return _read_source(spark, url, given)
    scan, native, whole, epochs = split
    halves, unreachable = [], None
    try:
        halves += _read_native(scan, native) if native else []
    except UnreachableError as error:
        whole, epochs, unreachable = False, (), error
    if not whole:
        rest = replace(scan.reading, native_epochs=epochs)
        small = read_here(spark, scan.snapshot, rest, scan.result)
        if small is None:
            bounds = (rest.start, rest.end)
            small = _read_rest(scan, url, given, bounds, HelperNotes(native_epochs=epochs))
            if unreachable is not None:
                _warn_once(unreachable)
        halves.append(small)
    return reduce(DataFrame.unionAll, halves)


def read_in_order(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    """Read a stream's events as `read` does, with partitions in the order of offsets.

    Spark sorts the files of one scan by size, so each Parquet segment is a scan of its own, and the
    ranges between are read through the source. A stream with very many segments is read through the
    source as a whole: planning so many scans would take longer than it saves.
    """
    url, given = as_location(url), as_texts(options)
    split = _split(spark, url, given)
    if split is None or not 0 < len(split[1]) <= _MOST_SCANS:
        return _read_source(spark, url, given)
    scan, native, _, _ = split
    place, pieces = scan.reading.start, []
    try:
        base = _find_base(scan, native)
        for piece in native:
            start, end = piece.start + piece.row_start, piece.start + piece.row_end
            if place < start:
                pieces.append(_read_rest(scan, url, given, (place, start)))
            pieces.append(_read_files(scan, base, [piece], divided=_is_divided(piece)))
            place = end
    except UnreachableError as error:
        _warn_once(error)
        return _read_source(spark, url, given)
    if place < scan.reading.end:
        pieces.append(_read_rest(scan, url, given, (place, scan.reading.end)))
    return reduce(DataFrame.unionAll, pieces)


def _split(
    spark: SparkSession, url: str, given: Mapping[str, str]
) -> tuple[_Scan, list[ParquetFile], bool, tuple[int, ...]] | None:
    """Return a scan, the segments that Spark reads itself, whether they are all, and their epochs.

    None for a metadata table and for the streams of a folder.
    """
    parsed = parse_options({**given, "path": url}, READ)
    if names_many(url):
        return None
    refuse_others(
        given,
        HYBRID,
        "Spark's own reader of Parquet segments does not know this option",
        'remove it, or read through spark.read.format("segstore")',
    )
    source = bound_source(spark)({**given, "path": url})
    snapshot = None if parsed["metadata"] == STREAMS else snapshot_of(source, parsed)
    if snapshot is None or parsed["metadata"] is not None:
        return None
    reading = plan_reading(snapshot, parsed)
    needed = from_stored(reading.needed_schema, snapshot.spark_schema)
    result = from_stored(reading.result_schema, snapshot.spark_schema)
    epochs = find_native_epochs(reading, needed) if reading.end <= MAX_START else ()
    native, whole = snapshot.parquet(reading, epochs)
    scan = _Scan(spark, snapshot, reading, needed, result)
    return scan, native, whole and bool(native), epochs if native else ()


def _read_rest(
    scan: _Scan,
    url: str,
    given: Mapping[str, str],
    bounds: tuple[int, int],
    notes: HelperNotes = NO_NOTES,
) -> DataFrame:
    """Read a range of the same version through the source."""
    pinned = {"startCut": bounds[0], "endCut": bounds[1], "versionAsOf": scan.reading.version}
    bound = ("timestampAsOf", "replicatedOnly")
    rest = {name: value for name, value in given.items() if name not in bound}
    return _read_source(scan.spark, url, {**rest, **as_texts(pinned), **notes.as_options()})


def _read_source(spark: SparkSession, url: str, options: Mapping[str, str]) -> DataFrame:
    _check_batches(spark)
    return spark.read.format("segstore").options(**options).load(url)


def _check_batches(spark: SparkSession) -> None:
    """Refuse a setting that ends every read of a Python source with an assertion of Spark's."""
    rows = spark.conf.get(_BATCH_ROWS)
    if rows is not None and int(rows) < 1:
        raise InvalidInputError(
            "Spark can't read Python sources with batches of any size",
            remedy="set it to 10000, Spark's default",
            **{_BATCH_ROWS: rows},
        )


def _read_native(scan: _Scan, slices: list[ParquetFile]) -> list[DataFrame]:
    """Return the rows of Parquet segments: those that are read whole, and those that a cut divides.

    Raises:
        UnreachableError: Spark can't read the files itself.
    """
    whole = [piece for piece in slices if not _is_divided(piece)]
    divided = [piece for piece in slices if _is_divided(piece)]
    base = _find_base(scan, slices)
    # Row positions are needed only in segments that a cut divides: two at most.
    parts = ((whole, False), (divided, True))
    return [_read_files(scan, base, part, divided=cut) for part, cut in parts if part]


def _is_divided(file: ParquetFile) -> bool:
    return (file.row_start, file.row_end) != (0, file.rows)


def _find_base(scan: _Scan, slices: list[ParquetFile]) -> str:
    return find_base(scan.spark, scan.snapshot.url, slices[0])


def _read_files(scan: _Scan, base: str, slices: list[ParquetFile], *, divided: bool) -> DataFrame:
    reading = scan.reading
    # Only names and types: a column's metadata must not change how the file is read.
    stored = reading.as_stored(reading.needed_schema).names
    fields = zip(stored, scan.needed, strict=True)
    plain = StructType([StructField(name, field.dataType) for name, field in fields])
    frame = open_files(
        scan.spark,
        base,
        slices,
        plain,
        name=f"{scan.reading.stream_id}/{scan.reading.version}",
        unpushed=find_unpushed(reading.pruning),
    )
    offset = reading.offset_column or OFFSET_NAME
    added = [offset] if divided or reading.offset_column is not None else []
    if added:
        frame = frame.withColumn(offset, F.expr(OFFSET))
    if divided:
        place = F.col(quote(offset))
        frame = frame.where((place >= reading.start) & (place < reading.end))
    needed = [*scan.needed.names, *added]
    if reading.stored:
        pairs = zip([*stored, *added], needed, strict=True)
        frame = frame.select(*(F.col(quote(one)).alias(name) for one, name in pairs))
    kept = filter_column(reading.filters)
    if kept is not None:
        frame = frame.where(kept)
    names = [field.name for field in scan.result]
    if names == needed and not any(field.metadata for field in scan.result):
        return frame  # naming every column again would cost a millisecond
    columns = (
        F.col(quote(field.name)).alias(field.name, metadata=field.metadata or {})
        for field in scan.result
    )
    return frame.select(*columns)


def _warn_once(error: UnreachableError) -> None:
    if error.kind not in _warned:
        _warned.add(error.kind)
        warnings.warn(
            f"Spark can't read the Parquet segments itself, so all events come through the "
            f"segstore source, which is slower: {error}",
            stacklevel=3,
        )


def read_here(
    spark: SparkSession, snapshot: Snapshot, reading: Reading, result: StructType
) -> DataFrame | None:
    """Read what a read leaves to the source as a local table; None if it is large.

    Also None if Spark's Parquet reader does not read all types exactly: others have different forms
    in Spark and in Arrow. Raises as `Stream.read`.
    """
    if not result.fields or not all(map(is_native_field, result)):
        return None
    tasks = snapshot.tasks(reading, min_partitions=_THREADS)
    entries = [placed.entry for task in tasks for placed in task.slices]
    if len(entries) > _MOST_SEGMENTS or sum(entry.bytes for entry in entries) > MOST_BYTES:
        return None

    def run(task: ReadTask) -> list[pa.RecordBatch]:
        return [*slice_batches(reading, result, task)]

    with ThreadPoolExecutor(_THREADS) as pool:
        batches = [*chain.from_iterable(pool.map(run, tasks))]
    schema = to_arrow(result)
    whole = pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], schema)
    if whole.nbytes > MOST_MEMORY:
        return None
    try:
        return spark.createDataFrame(_rebase(whole), result)
    except ValueError:
        _check_batches(spark)
        raise


def _rebase(batch: pa.RecordBatch) -> pa.Table:
    """Return a table of one batch, even if it is empty, whose columns are not slices.

    To convert times in lists and maps, Spark needs a chunk, and fails for a slice with nulls.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pa.ipc.open_stream(sink.getvalue()) as reader:
        return reader.read_all()
