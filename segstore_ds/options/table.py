"""The table of options: name, type, default, scopes and meaning of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

READ, WRITE = "read", "write"
NOTES = "__segstore"  # internal: what a helper tells the source beside the user's options
STREAM_READ, STREAM_WRITE = "stream read", "stream write"
PYTHON = "call from Python"  # an argument alone: what Spark's jobs do needs no other value
COMPRESSIONS = ("zstd", "lz4", "none")
SEGMENT_FORMATS = ("auto", "arrow", "parquet")

# Limits at which an appender flushes on its own.
FLUSH_BYTES = 64 << 20
FLUSH_ROWS = 1_000_000
FLUSH_SECONDS = 10.0
LINGER_SECONDS = 0.005

_READS, _WRITES = (READ, STREAM_READ), (WRITE, STREAM_WRITE)
_ALL = (*_READS, *_WRITES)


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table.

    Attributes:
        name: The name that users write.
        kind: ``text``, ``int``, ``bytes``, ``bool``, ``list``, ``json`` or ``choice``.
        scopes: Where it is allowed: `READ`, `WRITE`, `STREAM_READ`, `STREAM_WRITE`, `PYTHON`.
        meaning: One line for docs/options.md.
        default: The value if the option is not given; None if absence has its own meaning.
        least: Smallest number allowed.
        choices: Allowed words of a ``choice``.
        why: Who needs another value than the default. A size or a codec without an answer to that
            is a constant, not an option.
    """

    name: str
    kind: str
    scopes: tuple[str, ...]
    meaning: str
    default: Any = None
    least: int = 0
    choices: tuple[str, ...] = ()
    why: str = ""


TABLE: tuple[Option, ...] = (
    Option("path", "text", _ALL, "the stream; the same as `load(path)`, `save(path)`"),
    Option(
        "storageOptions",
        "json",
        _ALL,
        "JSON object for the filesystem, flat or keyed by URL prefix; values may be `env:NAME`. "
        "Spark shows options in plans: for secrets use `register(spark, storage_options=...)`",
    ),
    Option(
        "startCut",
        "text",
        _READS,
        "where to start: a cut in any of its forms, such as an offset, `tail` or `version:N`",
        default="head",
    ),
    Option(
        "endCut",
        "text",
        _READS,
        "where to end, in these forms; not included. A streaming query delivers nothing past it; "
        "with `tail` it has no end",
        default="tail",
    ),
    Option("versionAsOf", "int", (READ,), "read the stream as of this version"),
    Option(
        "timestampAsOf",
        "text",
        (READ,),
        "read the stream as of this time, which has a zone; not with `versionAsOf`",
    ),
    Option(
        "replicatedOnly",
        "bool",
        _READS,
        "only up to the newest version that is replicated everywhere",
        default=False,
    ),
    Option(
        "columns",
        "list",
        _READS,
        "columns to read: a comma list or a JSON array; `[]` returns generated columns alone, such "
        "as `offsetColumn`, and reads no data",
    ),
    Option(
        "filters",
        "text",
        _READS,
        "JSON list, all of which must hold: "
        '`[["user","==","ada"],["ts",">=","2013-01-05T00:00:00Z"]]`; '
        "of a list of such lists one must hold. Or a text: `n > 3 and user == 'ada'`",
    ),
    Option(
        "startEventTime",
        "text",
        _READS,
        "only events whose time column is at or after this: a time such as 2026-11-20T10:00:00Z, a "
        "date or a number, as the column's type is",
    ),
    Option("endEventTime", "text", _READS, "only events whose time column is before this"),
    Option("offsetColumn", "text", _READS, "name of an extra column with each event's offset"),
    Option(
        "commitTimeColumn",
        "text",
        _READS,
        "name of an extra column with the time (UTC) at which each event was committed",
    ),
    Option(
        "partitionBytes",
        "bytes",
        _READS,
        "encoded bytes per task, about",
        default=128 << 20,
        least=1,
        why="Less for tasks with little memory, more where a task takes seconds to start",
    ),
    Option(
        "partitionRows",
        "int",
        (PYTHON,),
        "most events per task, about",
        least=1,
        why="For work whose time or memory grows with events, not with bytes, such as a model's",
    ),
    Option(
        "minPartitions",
        "int",
        _READS,
        "at least this many tasks, if there are enough frames",
        least=1,
        why="For few events that each take long, on many cores",
    ),
    Option(
        "failOnDataLoss",
        "bool",
        _READS,
        "a start below the head is an error that names the lost events; false starts at the "
        "head, with a warning in the log",
        default=True,
    ),
    Option(
        "readCacheBytes",
        "bytes",
        _READS,
        "verified bytes that each process keeps for later reads",
        default=128 << 20,
        why="More where jobs repeat reads, 0 for small executors",
    ),
    Option(
        "maxRowsPerTrigger", "int", (STREAM_READ,), "most events per micro-batch, exactly", least=1
    ),
    Option(
        "maxBytesPerTrigger",
        "bytes",
        (STREAM_READ,),
        "most encoded bytes per micro-batch, pro rata within a segment; at least one event",
        least=1,
    ),
    Option(
        "readerName",
        "text",
        (STREAM_READ,),
        "publish the query's position under this name: `retain` waits for it, `reader:NAME` is a "
        "cut. One name, one query",
    ),
    Option(
        "metadata",
        "choice",
        (READ,),
        "read this metadata table instead of the events",
        choices=(
            "segments",
            "frames",
            "history",
            "info",
            "storage",
            "writers",
            "readers",
            "tags",
            "streams",
        ),
    ),
    Option("createIfMissing", "bool", _WRITES, "create the stream if there is none", default=True),
    Option(
        "singleWriter",
        "bool",
        _ALL,
        "allow a filesystem that can't create exclusively; you promise one writing job at a time. "
        "Reads of such a stream need it too",
        default=False,
    ),
    Option(
        "writerId",
        "text",
        _WRITES,
        "name of an idempotent writer; with `batchId`. For a streaming query the default is "
        "the query's id, which always owns the name",
    ),
    Option(
        "batchId",
        "int",
        (WRITE,),
        "number of this writer's batch; it grows, and a repeated one changes nothing",
    ),
    Option(
        "writerTakeover",
        "bool",
        _WRITES,
        "take a writer id over from another owner, or set it back to this batch",
        default=False,
    ),
    Option(
        "onRepeat",
        "choice",
        _WRITES,
        "of a batch id with other events: `error`, or `skip` them",
        default="error",
        choices=("error", "skip"),
    ),
    Option(
        "expectedTail",
        "int",
        (WRITE,),
        "commit only if this is still the tail, else ConflictError: for an overwrite with "
        "events read up to there",
    ),
    Option(
        "expectedVersion",
        "int",
        (WRITE,),
        "commit only on top of this version, else ConflictError: upkeep also makes versions",
    ),
    Option(
        "compression",
        "choice",
        _WRITES,
        "codec of frames: `zstd`, `lz4`, `none`",
        default="zstd",
        choices=COMPRESSIONS,
        why="`none` for events that are compressed already or read in place",
    ),
    Option(
        "compressionLevel",
        "int",
        (PYTHON,),
        "level of zstd",
        default=2,
        least=1,
        why="15 for an archive",
    ),
    Option(
        "frameRows",
        "int",
        _WRITES,
        "most events per frame, which has 16 MiB at most before compression, about",
        default=65_536,
        least=1,
        why="Less for reads of single events, which decode a whole frame",
    ),
    Option("segmentRows", "int", (PYTHON,), "most events per segment", least=1),
    Option(
        "segmentBytes",
        "bytes",
        _WRITES,
        "encoded bytes per segment, about",
        default=512 << 20,
        least=1,
        why="Less for engines that read one file per task",
    ),
    Option(
        "segmentFormat",
        "choice",
        _WRITES,
        "`arrow`, `parquet`, or `auto`: Parquet for tasks of 10,000 events or more",
        default="auto",
        choices=SEGMENT_FORMATS,
    ),
    Option(
        "inlineBytes",
        "bytes",
        _WRITES,
        "a task with less encoded output writes no segment of its own",
        default=64 << 10,
        why="More for many small tasks on object stores",
    ),
    Option(
        "mergeSchema",
        "bool",
        _WRITES,
        "allow new columns, missing columns and wider types",
        default=False,
    ),
    Option(
        "overwriteSchema",
        "bool",
        _WRITES,
        "with mode overwrite: replace the schema as well",
        default=False,
    ),
    Option(
        "statsColumns",
        "list",
        _WRITES,
        "columns with statistics (the first 32); a comma list or a JSON array",
        why="For wide tables that are filtered by other columns",
    ),
    Option(
        "keyColumns",
        "list",
        _WRITES,
        "where this write creates the stream: columns by whose values events are looked up; a "
        "comma list or a JSON array",
    ),
    Option(
        "timeColumn",
        "text",
        _WRITES,
        "where this write creates the stream: the column with each event's time",
    ),
    Option(
        "compact",
        "choice",
        _WRITES,
        "`auto` merges the newest small segments after the commit; `off` never does",
        choices=("auto", "off"),
    ),
)

# What users of other systems try: names of options, in small letters, each with ours.
_PEERS = """
startCut: startingoffsets startingversion startingtimestamp startingoffsetsbytimestamp
startCut: start_stream_cut streamfromtimestamp stream-from-timestamp scan.snapshot-id
endCut: endingoffsets endingversion endingtimestamp end_stream_cut
versionAsOf: snapshot-id scan.version
timestampAsOf: as-of-timestamp scan.timestamp scan.timestamp-millis
filters: replacewhere where filter
partitionBytes: maxpartitionbytes split-size read.split.target-size
failOnDataLoss: ignoremissingfiles
maxRowsPerTrigger: maxoffsetspertrigger streaming-max-rows-per-micro-batch
maxBytesPerTrigger: approx_bytes_per_trigger maxfilespertrigger
maxBytesPerTrigger: streaming-max-files-per-micro-batch
readerName: consumer-id consumerid subscriber kafka.group.id groupidprefix
metadata: streaminfo streams
writerId: txnappid commituser commit.user-prefix
batchId: txnversion commitidentifier
compression: parquet.compression codec write.parquet.compression-codec
segmentBytes: targetfilesize write.target-file-size-bytes maxrecordsperfile
segmentFormat: write.format.default file.format
statsColumns: dataskippingnumindexedcols delta.dataskippingstatscolumns
compact: autooptimize autocompact delta.autooptimize.autocompact auto-compaction
"""
PEERS: Mapping[str, str] = {
    peer: ours
    for ours, _, peers in (line.partition(":") for line in _PEERS.splitlines())
    for peer in peers.split()
}
