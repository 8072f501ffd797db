"""Every option of segstore: one table from which parsing, errors and the README are made.

Names are case-blind. A value is text, as Spark hands it over, or already of the option's type.
"""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from segstore_ds.errors import InvalidInputError

READ, WRITE = "read", "write"
SETTLED = "__segstore_settled"  # not a user's: set by the hybrid scan on its own reads
COPIED = "__segstore_copied"  # nor this: set by the helper `copy` on its own writes
STREAM_READ, STREAM_WRITE = "stream read", "stream write"
COMPRESSIONS = ("zstd", "lz4", "none")
SEGMENT_FORMATS = ("auto", "arrow", "parquet")

# When an appender flushes without being asked.
FLUSH_BYTES = 64 << 20
FLUSH_ROWS = 1_000_000
FLUSH_SECONDS = 10.0

_READS, _WRITES = (READ, STREAM_READ), (WRITE, STREAM_WRITE)
_SIZE = re.compile(r"\s*([0-9]+)\s*([kmgt]?)(i?b)?\s*", re.IGNORECASE)
_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table.

    Attributes:
        name: As users write it.
        kind: ``text``, ``int``, ``bytes``, ``bool``, ``list``, ``json`` or ``choice``.
        default: What holds when it is not given; None where absence means something of its own.
        scopes: Where it may stand: `READ`, `WRITE`, `STREAM_READ`, `STREAM_WRITE`.
        meaning: One line for the README.
        least: Smallest number allowed.
        choices: Allowed words of a ``choice``.
        peers: What other systems call it, so that errors can answer with ours.
        answers: Words that it does not take but some will try, each with what to do instead.
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
        "where to end, likewise; not included. A streaming query delivers nothing past "
        "it, and follows the `tail` as it moves",
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
    Option("columns", "list", None, _READS, "columns to read: a comma list or a JSON array"),
    Option(
        "filters",
        "text",
        None,
        _READS,
        "JSON list, all of which must hold: "
        '`[["user","==","ada"],["ts",">=","2013-01-05T00:00:00Z"]]`',
        peers=("replacewhere", "where", "filter"),
    ),
    Option(
        "offsetColumn", "text", None, _READS, "name of an extra column with each event's offset"
    ),
    Option(
        "segmentColumn",
        "text",
        None,
        _READS,
        "name of an extra column with each event's segment id",
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
    ),
    Option("partitionRows", "int", None, _READS, "most events per task, about", least=1),
    Option(
        "minPartitions",
        "int",
        None,
        _READS,
        "at least so many tasks, where there are frames enough",
        least=1,
    ),
    Option(
        "failOnDataLoss",
        "bool",
        True,
        _READS,
        "a start below the head is an error that names what is lost; false starts at the head, "
        "with a warning in the log",
        peers=("ignoremissingfiles",),
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
        peers=("approx_bytes_per_trigger",),
    ),
    Option(
        "maxSegmentsPerTrigger",
        "int",
        1000,
        (STREAM_READ,),
        "most segments per micro-batch, so that the first one is not all of history",
        least=1,
        peers=("maxfilespertrigger", "streaming-max-files-per-micro-batch"),
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
        "read this about the stream instead of its events: `segments`, `frames`, `history`, "
        "`info`, `writers`, `readers`, `tags`; or `compactionPlan`, one row per group of "
        "segments that `operation=compact` replaces",
        choices=(
            "segments",
            "frames",
            "history",
            "info",
            "writers",
            "readers",
            "tags",
            "compactionPlan",
        ),
        peers=("streaminfo", "streams"),
    ),
    Option("createIfMissing", "bool", True, _WRITES, "make the stream where there is none"),
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
        "name of an idempotent writer; with `batchId`. Of a streaming query: instead of its id, "
        "which then owns the name",
        peers=("txnappid", "commituser", "commit.user-prefix"),
    ),
    Option(
        "batchId",
        "int",
        None,
        (WRITE,),
        "number of this writer's batch; it grows, and the same one again changes nothing",
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
        "compression",
        "choice",
        "zstd",
        _WRITES,
        "of frames: `zstd`, `lz4`, `none`",
        choices=COMPRESSIONS,
        peers=("parquet.compression", "codec", "write.parquet.compression-codec"),
    ),
    Option("compressionLevel", "int", 2, _WRITES, "of zstd", least=1),
    Option("frameRows", "int", 65_536, _WRITES, "most events per frame", least=1),
    Option(
        "frameBytes",
        "bytes",
        16 << 20,
        _WRITES,
        "bytes per frame before compression, about",
        least=1,
    ),
    Option(
        "segmentRows",
        "int",
        None,
        _WRITES,
        "most events per segment",
        least=1,
        peers=("maxrecordsperfile",),
    ),
    Option(
        "segmentBytes",
        "bytes",
        512 << 20,
        _WRITES,
        "encoded bytes per segment, about",
        least=1,
        peers=("targetfilesize", "write.target-file-size-bytes"),
    ),
    Option(
        "segmentFormat",
        "choice",
        "auto",
        _WRITES,
        "`arrow` is quick to write and read as it comes; `parquet` is smaller, and any engine "
        "reads it; `auto` is `parquet` for tasks of more than one frame. Whatever Parquet can't "
        "bring back exactly, and what a task sends inline, is `arrow`",
        choices=SEGMENT_FORMATS,
        peers=("write.format.default", "file.format"),
    ),
    Option(
        "inlineBytes",
        "bytes",
        64 << 10,
        _WRITES,
        "a task with less encoded output sends it to the driver, which writes one segment for all",
    ),
    Option(
        "cacheBufferBytes",
        "bytes",
        8 << 20,
        _WRITES,
        "size of a write cache buffer, which is written in one go; on object stores that is a part "
        "of an upload, 5m at least",
        least=1,
    ),
    Option(
        "cacheBuffers",
        "int",
        2,
        _WRITES,
        "buffers per task: one is filled while others are written; they and one frame are the "
        "memory that writing takes",
        least=1,
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
        peers=("dataskippingnumindexedcols", "delta.dataskippingstatscolumns"),
    ),
    Option(
        "compact",
        "choice",
        None,
        _WRITES,
        "`auto`: after the commit merge the newest small segments, at most 32 MiB of them; `off` "
        "leaves them. Batch writes are `off` unless told otherwise, streaming writes `auto`",
        choices=("auto", "off"),
        peers=("autooptimize", "autocompact", "delta.autooptimize.autocompact", "auto-compaction"),
    ),
    Option(
        "operation",
        "choice",
        "append",
        (WRITE,),
        "`compact` takes the rows of `metadata=compactionPlan`, merges the groups in tasks, and "
        "commits once; `copy` takes the rows of `metadata=segments` of another stream; `append` "
        "takes events",
        choices=("append", "compact", "copy"),
    ),
    Option(
        "copyFrom",
        "text",
        None,
        (WRITE,),
        "the stream that is copied; there is none yet where it is written to",
    ),
    Option(
        "copyMode",
        "choice",
        None,
        (WRITE,),
        "`segments` (with `operation=copy`) copies segment objects; `events` takes rows that were "
        "made of the source's events, as the whole of a new stream: one write, safe to repeat",
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
        "letters, digits and dashes: the same copy again under its id goes on, or does nothing",
    ),
    Option("seal", "bool", False, (WRITE,), "the copy ends with its last event"),
    Option(
        "compactRows",
        "int",
        16_777_216,
        (*_WRITES, READ),
        "most events of a segment that compaction makes",
        least=1,
    ),
    Option(
        "compactBytes",
        "bytes",
        128 << 20,
        (*_WRITES, READ),
        "most encoded bytes of a segment that compaction makes",
        least=1,
        peers=("compaction.target-file-size", "rewrite-target-file-size-bytes"),
    ),
    Option(
        "compactMode",
        "choice",
        "merge",
        (*_WRITES, READ),
        "`merge` decodes and writes large frames, `stitch` joins frames of Arrow as they are and "
        "leaves Parquet alone, `split` cuts what is over the target",
        choices=("merge", "stitch", "split"),
    ),
)

BY_NAME: Mapping[str, Option] = {option.name.lower(): option for option in TABLE}
_BY_PEER: Mapping[str, Option] = {peer: option for option in TABLE for peer in option.peers}
# Keys that Spark itself puts among a source's options, and one of ours.
_SPARKS_OWN = frozenset(
    [
        "paths",
        "checkpointlocation",
        "queryname",
        "location",
        "provider",
        "owner",
        "comment",
        "external",
        "collation",
        "serialization.format",
        "is_managed_location",
        "__datetime_rebase_mode",
        SETTLED,
        COPIED,
    ]
)


def default(name: str) -> Any:
    """Return an option's default.

    Raises:
        KeyError: There is no such option.
    """
    return BY_NAME[name.lower()].default


def parse_options(given: Mapping[str, Any], scope: str, *others: str) -> dict[str, Any]:
    """Check the options of a read or a write and return them typed, with defaults filled in.

    Args:
        given: Names in any case, values as text or typed. Spark's own keys are passed over.
        scope: `READ`, `WRITE`, `STREAM_READ` or `STREAM_WRITE`.
        others: Further scopes that are allowed, where it is not known yet which one it is.

    Returns:
        A value for every option of the scope, under its name as the table writes it.

    Raises:
        InvalidInputError: An unknown option (names the nearest), one of the other scope (says
            where it belongs), another system's name (answers with ours), or a value out of range.
    """
    scopes = {scope, *others}
    parsed = {option.name: option.default for option in TABLE if scopes & {*option.scopes}}
    for name, value in given.items():
        key = name.lower()
        if key in _SPARKS_OWN or key.startswith(("option.", "spark.")):
            continue
        option = BY_NAME.get(key)
        if option is None:
            raise _unknown(name, scope)
        if not scopes & {*option.scopes}:
            raise InvalidInputError(
                f"option belongs to a {option.scopes[0]}, not to a {scope}",
                remedy=f"remove it from the {scope}",
                option=option.name,
            )
        if value is not None:
            parsed[option.name] = parse_value(option, value)
    return parsed


def parse_value(option: Option, value: Any) -> Any:
    """Return one option's value typed.

    Raises:
        InvalidInputError: The value is not of the option's kind or out of range.
    """
    match option.kind:
        case "bool":
            return _boolean(option, value)
        case "int" | "bytes":
            return _number(option, value)
        case "list":
            return _names(option, value)
        case "json":
            return _json_object(option, value)
        case "choice":
            words = {choice.lower(): choice for choice in option.choices}
            word = str(value).strip().lower()
            if word not in words:
                if (answer := dict(option.answers).get(word)) is not None:
                    raise InvalidInputError(
                        "not an option's value", remedy=answer, option=option.name, value=value
                    )
                raise _wrong(option, value, "one of " + ", ".join(option.choices))
            return words[word]
    if not isinstance(value, str | int) or value == "":
        raise _wrong(option, value, "a text that is not empty")
    return str(value)


def format_table(scope: str, *, beside: str | None = None) -> str:
    """Return the options of a scope as a Markdown table, for the README.

    Args:
        scope: As in `parse_options`.
        beside: Leave out what this other scope takes as well.
    """
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for option in TABLE:
        if scope in option.scopes and beside not in option.scopes:
            shown = "" if option.default is None else f"`{_shown(option)}`"
            rows.append(f"| `{option.name}` | {shown} | {option.meaning.replace('|', '/')} |")
    return "\n".join(rows)


def _shown(option: Option) -> str:
    if option.kind == "bool":
        return str(option.default).lower()
    if option.kind == "bytes":
        for suffix, factor in (("g", 1 << 30), ("m", 1 << 20), ("k", 1 << 10)):
            if option.default % factor == 0:
                return f"{option.default // factor}{suffix}"
    return str(option.default)


def _unknown(name: str, scope: str) -> InvalidInputError:
    peer = _BY_PEER.get(name.lower())
    if peer is not None:
        return InvalidInputError(
            "option is another system's", remedy=f"here it is called {peer.name}", option=name
        )
    known = {option.name.lower(): option.name for option in TABLE if scope in option.scopes}
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    remedy = f"did you mean {known[near[0]]}?" if near else f"known: {', '.join(known.values())}"
    return InvalidInputError("unknown option", remedy=remedy, option=name, scope=scope)


def _wrong(option: Option, value: Any, expected: str) -> InvalidInputError:
    shown = "..." if option.kind == "json" else value
    return InvalidInputError(
        "option has a wrong value", remedy=f"give {expected}", option=option.name, value=shown
    )


def _boolean(option: Option, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word not in ("true", "false"):
        raise _wrong(option, value, "true or false")
    return word == "true"


def _number(option: Option, value: Any) -> int:
    expected = f"an integer of at least {option.least}"
    if option.kind == "bytes":
        expected += ", with k, m or g for powers of 1024"
    if isinstance(value, bool):
        raise _wrong(option, value, expected)
    match = _SIZE.fullmatch(str(value))
    if match is None or (option.kind == "int" and (match[2] or match[3])):
        raise _wrong(option, value, expected)
    number = int(match[1]) * _FACTORS[match[2].lower()]
    if not option.least <= number < 2**63:
        raise _wrong(option, value, expected)
    return number


def _names(option: Option, value: Any) -> tuple[str, ...]:
    found: Sequence[Any]
    if not isinstance(value, str):
        found = list(value)
    elif value.lstrip().startswith("["):
        try:
            found = json.loads(value)
        except ValueError as error:
            raise _wrong(option, value, "a comma list or a JSON array of names") from error
    else:
        found = [part.strip() for part in value.split(",")]
    if not found or not all(isinstance(name, str) and name for name in found):
        raise _wrong(option, value, "a comma list or a JSON array of names")
    if len(set(found)) != len(found):
        raise _wrong(option, value, "each name once")
    return tuple(found)


def _json_object(option: Option, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            # No cause: it would quote the text, which may hold a secret.
            raise _wrong(option, value, "a JSON object") from None
    if not isinstance(value, Mapping):
        raise _wrong(option, value, "a JSON object")
    return dict(value)
