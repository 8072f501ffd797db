"""The table of options: name, type, default, scopes and meaning of each."""

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


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table.

    Attributes:
        name: The name that users write.
        kind: ``text``, ``int``, ``bytes``, ``bool``, ``list``, ``json`` or ``choice``.
        default: The value if the option is not given; None if absence has its own meaning.
        scopes: Where it is allowed: `READ`, `WRITE`, `STREAM_READ`, `STREAM_WRITE`, `PYTHON`.
        meaning: One line for docs/options.md.
        least: Smallest number allowed.
        choices: Allowed words of a ``choice``.
        peers: Its names in other systems, so that errors can answer with ours.
        answers: Words that some users will try but that are not allowed, each with what to use
            instead.
        why: Who needs another value than the default. A size or a codec without an answer to that
            is a constant, not an option.
    """

    name: str
    kind: str
    default: Any
    scopes: tuple[str, ...]
    meaning: str
    least: int = 0
    choices: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    answers: tuple[tuple[str, str], ...] = ()
    why: str = ""


TABLE: tuple[Option, ...] = (
    Option(
        "path",
        "text",
        None,
        (*_READS, *_WRITES),
        "the stream; the same as `load(path)`, `save(path)`",
    ),
    Option(
        "storageOptions",
        "json",
        None,
        (*_READS, *_WRITES),
        "JSON object for the filesystem, flat or keyed by URL prefix; values may be `env:NAME`. "
        "Spark shows options in plans: for secrets use `register(spark, storage_options=...)`",
    ),
    Option(
        "startCut",
        "text",
        "head",
        _READS,
        "where to start: a cut in any of its forms, such as an offset, `tail` or `version:N`",
        peers=(
            "startingoffsets",
            "startingversion",
            "startingtimestamp",
            "startingoffsetsbytimestamp",
            "start_stream_cut",
            "streamfromtimestamp",
            "stream-from-timestamp",
            "scan.snapshot-id",
        ),
    ),
    Option(
        "endCut",
        "text",
        "tail",
        _READS,
        "where to end, likewise; not included. A streaming query delivers nothing past it; "
        "with `tail` it has no end",
        peers=("endingoffsets", "endingversion", "endingtimestamp", "end_stream_cut"),
    ),
    Option(
        "versionAsOf",
        "int",
        None,
        (READ,),
        "read the stream as of this version",
        least=0,
        peers=("snapshot-id", "scan.version"),
    ),
    Option(
        "timestampAsOf",
        "text",
        None,
        (READ,),
        "read the stream as of this time, which has a zone; not with `versionAsOf`",
        peers=("as-of-timestamp", "scan.timestamp", "scan.timestamp-millis"),
    ),
    Option(
        "replicatedOnly",
        "bool",
        False,
        _READS,
        "only up to the newest version that is replicated everywhere",
    ),
    Option(
        "columns",
        "list",
        None,
        _READS,
        "columns to read: a comma list or a JSON array; `[]` for `offsetColumn` and its like "
        "alone, which read no segment",
    ),
    Option(
        "filters",
        "text",
        None,
        _READS,
        "JSON list, all of which must hold: "
        '`[["user","==","ada"],["ts",">=","2013-01-05T00:00:00Z"]]`; '
        "of a list of such lists one must hold. Or a text: `n > 3 and user == 'ada'`",
        peers=("replacewhere", "where", "filter"),
    ),
    Option(
        "startEventTime",
        "text",
        None,
        _READS,
        "only events whose time column is at or after this: a time such as 2026-11-20T10:00:00Z, a "
        "date or a number, as the column's type is",
    ),
    Option(
        "endEventTime",
        "text",
        None,
        _READS,
        "only events whose time column is before this",
    ),
    Option(
        "offsetColumn", "text", None, _READS, "name of an extra column with each event's offset"
    ),
    Option(
        "commitTimeColumn",
        "text",
        None,
        _READS,
        "name of an extra column with the time (UTC) at which each event was committed",
    ),
    Option(
        "partitionBytes",
        "bytes",
        128 << 20,
        _READS,
        "encoded bytes per task, about",
        least=1,
        peers=("maxpartitionbytes", "split-size", "read.split.target-size"),
        why="Less for tasks with little memory, more where a task takes seconds to start",
    ),
    Option(
        "partitionRows",
        "int",
        None,
        (PYTHON,),
        "most events per task, about",
        least=1,
        why="For work whose time or memory grows with events, not with bytes, such as a model's",
    ),
    Option(
        "minPartitions",
        "int",
        None,
        _READS,
        "at least this many tasks, if there are enough frames",
        least=1,
        why="For few events that each take long, on many cores",
    ),
    Option(
        "failOnDataLoss",
        "bool",
        True,
        _READS,
        "a start below the head is an error that names the lost events; false starts at the "
        "head, with a warning in the log",
        peers=("ignoremissingfiles",),
    ),
    Option(
        "readCacheBytes",
        "bytes",
        128 << 20,
        _READS,
        "verified bytes that each process keeps for later reads",
        why="More where jobs repeat reads, 0 for small executors",
    ),
    Option(
        "maxRowsPerTrigger",
        "int",
        None,
        (STREAM_READ,),
        "most events per micro-batch, exactly",
        least=1,
        peers=("maxoffsetspertrigger", "streaming-max-rows-per-micro-batch"),
    ),
    Option(
        "maxBytesPerTrigger",
        "bytes",
        None,
        (STREAM_READ,),
        "most encoded bytes per micro-batch, pro rata within a segment; at least one event",
        least=1,
        peers=(
            "approx_bytes_per_trigger",
            "maxfilespertrigger",
            "streaming-max-files-per-micro-batch",
        ),
    ),
    Option(
        "readerName",
        "text",
        None,
        (STREAM_READ,),
        "publish the query's position under this name: `retain` waits for it, `reader:NAME` is a "
        "cut. One name, one query",
        peers=("consumer-id", "consumerid", "subscriber", "kafka.group.id", "groupidprefix"),
    ),
    Option(
        "metadata",
        "choice",
        None,
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
            "compactionPlan",
            "streams",
        ),
        peers=("streaminfo", "streams"),
    ),
    Option("createIfMissing", "bool", True, _WRITES, "create the stream if there is none"),
    Option(
        "singleWriter",
        "bool",
        False,
        (*_READS, *_WRITES),
        "allow a filesystem that can't create exclusively; you promise one writing job at a time. "
        "Reads of such a stream need it too",
    ),
    Option(
        "writerId",
        "text",
        None,
        _WRITES,
        "name of an idempotent writer; with `batchId`. For a streaming query the default is "
        "the query's id, which always owns the name",
        peers=("txnappid", "commituser", "commit.user-prefix"),
    ),
    Option(
        "batchId",
        "int",
        None,
        (WRITE,),
        "number of this writer's batch; it grows, and a repeated one changes nothing",
        peers=("txnversion", "commitidentifier"),
    ),
    Option(
        "writerTakeover",
        "bool",
        False,
        _WRITES,
        "take a writer id over from another owner, or set it back to this batch",
    ),
    Option(
        "onRepeat",
        "choice",
        "error",
        _WRITES,
        "of a batch id with other events: `error`, or `skip` them",
        choices=("error", "skip"),
    ),
    Option(
        "expectedTail",
        "int",
        None,
        (WRITE,),
        "commit only if this is still the tail, else ConflictError: for an overwrite with "
        "events read up to there",
    ),
    Option(
        "expectedVersion",
        "int",
        None,
        (WRITE,),
        "commit only on top of this version, else ConflictError: upkeep also makes versions",
    ),
    Option(
        "compression",
        "choice",
        "zstd",
        _WRITES,
        "codec of frames: `zstd`, `lz4`, `none`",
        choices=COMPRESSIONS,
        why="`none` for events that are compressed already or read in place",
        peers=("parquet.compression", "codec", "write.parquet.compression-codec"),
    ),
    Option(
        "compressionLevel",
        "int",
        2,
        (PYTHON,),
        "level of zstd",
        least=1,
        why="15 for an archive",
    ),
    Option(
        "frameRows",
        "int",
        65_536,
        _WRITES,
        "most events per frame, which has 16 MiB at most before compression, about",
        least=1,
        why="Less for reads of single events, which decode a whole frame",
    ),
    Option(
        "segmentRows",
        "int",
        None,
        (PYTHON,),
        "most events per segment",
        least=1,
    ),
    Option(
        "segmentBytes",
        "bytes",
        512 << 20,
        _WRITES,
        "encoded bytes per segment, about; a merge has `compactBytes` instead",
        least=1,
        peers=("targetfilesize", "write.target-file-size-bytes", "maxrecordsperfile"),
        why="Less for engines that read one file per task",
    ),
    Option(
        "segmentFormat",
        "choice",
        "auto",
        _WRITES,
        "`arrow`, `parquet`, or `auto`: Parquet for tasks of 10,000 events or more",
        choices=SEGMENT_FORMATS,
        peers=("write.format.default", "file.format"),
    ),
    Option(
        "inlineBytes",
        "bytes",
        64 << 10,
        _WRITES,
        "a task with less encoded output writes no segment of its own",
        why="More for many small tasks on object stores",
    ),
    Option(
        "mergeSchema", "bool", False, _WRITES, "allow new columns, missing columns and wider types"
    ),
    Option(
        "overwriteSchema",
        "bool",
        False,
        _WRITES,
        "with mode overwrite: replace the schema as well",
    ),
    Option(
        "statsColumns",
        "list",
        None,
        _WRITES,
        "columns with statistics (the first 32); a comma list or a JSON array",
        why="For wide tables that are filtered by other columns",
        peers=("dataskippingnumindexedcols", "delta.dataskippingstatscolumns"),
    ),
    Option(
        "keyColumns",
        "list",
        None,
        _WRITES,
        "where this write creates the stream: columns by whose values events are looked up; a "
        "comma list or a JSON array",
    ),
    Option(
        "timeColumn",
        "text",
        None,
        _WRITES,
        "where this write creates the stream: the column with each event's time",
    ),
    Option(
        "compact",
        "choice",
        None,
        _WRITES,
        "`auto` merges the newest small segments after the commit; `off` never does",
        choices=("auto", "off"),
        peers=("autooptimize", "autocompact", "delta.autooptimize.autocompact", "auto-compaction"),
    ),
    Option(
        "operation",
        "choice",
        "append",
        (WRITE,),
        "what the rows are: events (`append`), a plan (`compact`), segments (`copy`)",
        choices=("append", "compact", "copy"),
    ),
    Option(
        "copyFrom",
        "text",
        None,
        (WRITE,),
        "the stream to copy; the destination must not exist yet",
    ),
    Option(
        "copyMode",
        "choice",
        None,
        (WRITE,),
        "what a copy's rows are: `segments`, or the source's `events`",
        choices=("segments", "events"),
        answers=(
            (
                "clone",
                (
                    "a clone takes no rows: segstore.clone(spark, source, target, copy_id), "
                    'or Stream.copy_to(url, copy_id=..., mode="clone")'
                ),
            ),
        ),
    ),
    Option(
        "copyId",
        "text",
        None,
        (WRITE,),
        "name of the copy: letters, digits and dashes. A repeated copy under its id resumes, "
        "or does nothing if it is done",
    ),
    Option("seal", "bool", False, (WRITE,), "seal the copy after its last event"),
    Option(
        "compactRows",
        "int",
        16_777_216,
        (*_WRITES, READ),
        "most events of a segment that compaction makes",
        least=1,
        why="Less for narrow events, whose segments are large once decoded",
    ),
    Option(
        "compactBytes",
        "bytes",
        128 << 20,
        (*_WRITES, READ),
        "most encoded bytes of a segment that compaction makes",
        least=1,
        peers=("compaction.target-file-size", "rewrite-target-file-size-bytes"),
        why="Less to rewrite less at a time, more for scans of object stores",
    ),
    Option(
        "compactMode",
        "choice",
        "merge",
        (*_WRITES, READ),
        "`merge` decodes small frames and writes large ones, `stitch` joins Arrow frames "
        "unchanged and skips Parquet segments, `split` splits segments over the target, "
        "and frames over theirs within a segment",
        choices=("merge", "stitch", "split"),
    ),
)
