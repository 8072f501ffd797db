"""The table of options: name, type, scopes and default of each, and how values are parsed.

Names are case-insensitive. A value is text, as Spark passes it, or already of the option's type.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from segstore_ds.errors import InvalidInputError
from segstore_ds.options.quantities import parse_duration, parse_size

READ, WRITE = "read", "write"
NOTES = "__segstore"  # internal: what our Spark functions pass to the source beside the options
STREAM_READ, STREAM_WRITE = "stream read", "stream write"
HYBRID = "hybrid scan"  # the option also holds for Parquet that Spark reads itself
MANY = "read of many streams"  # the option also holds for a read of a folder of streams
PYTHON = "call from Python"  # an argument of Python only; Spark's jobs use the default
COMPRESSIONS = ("zstd", "lz4", "none")
SEGMENT_FORMATS = ("auto", "arrow", "parquet")
TableFormat = Literal["delta", "iceberg"]  # On disk, in the property `publish`.
TABLE_FORMATS: tuple[TableFormat, ...] = get_args(TableFormat)
OPERATIONS = ("append", "compact", "copy")
COPY_MODES = ("segments", "events", "clone")
MERGE, STITCH, SPLIT = "merge", "stitch", "split"
COMPACT_MODES = (MERGE, STITCH, SPLIT)
_METADATA = (
    *("segments", "frames", "history", "info", "storage"),
    *("writers", "readers", "tags", "compactionPlan", "streams"),
)

# The targets of a compaction.
TARGET_ROWS = 1 << 24
TARGET_BYTES = 128 << 20

# Limits at which an appender flushes by itself.
FLUSH_BYTES = 64 << 20
FLUSH_ROWS = 1_000_000
FLUSH_SECONDS = 10.0
LINGER_SECONDS = 0.005

_BATCH, _READS = (READ, HYBRID), (READ, HYBRID, STREAM_READ)
_WRITES = (WRITE, STREAM_WRITE)
_MANY = (*_READS, MANY)
_ALL = (*_MANY, *_WRITES)
# Which call of a `Snapshot` takes an option of a read, under the option's Python name.
OPEN, PLAN, SPLIT = "open", "plan", "split"


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table; docs/options.md says what it means, and who needs another value.

    A value that no user can choose better than the default is a constant, not an option.
    """

    name: str  # the name that users write
    # ``text``, ``int``, ``version``, ``bytes``, ``age``, ``bool``, ``list``, ``json`` or
    # ``choice``.
    kind: str
    # Where it is allowed: `READ`, `HYBRID`, `STREAM_READ`, `WRITE`, `STREAM_WRITE`, `PYTHON`.
    scopes: tuple[str, ...]
    default: Any = None  # the value if the option is not given; None if absence has its own meaning
    least: int = 0  # smallest number allowed
    choices: tuple[str, ...] = ()  # allowed words of a ``choice``
    call: str = ""  # the call that takes it in a read of events: `OPEN`, `PLAN` or `SPLIT`


TABLE: tuple[Option, ...] = (
    Option("path", "text", _ALL),
    Option("storageOptions", "json", _ALL),
    Option("startCut", "text", _MANY, default="head", call=PLAN),
    Option("endCut", "text", _MANY, default="tail", call=PLAN),
    Option("versionAsOf", "version", _BATCH, call=OPEN),
    Option("timestampAsOf", "text", _BATCH, call=OPEN),
    Option("replicatedOnly", "bool", _MANY, default=False, call=OPEN),
    Option("columns", "list", _MANY, call=PLAN),
    Option("filters", "text", _MANY, call=PLAN),
    Option("startEventTime", "text", _MANY, call=PLAN),
    Option("endEventTime", "text", _MANY, call=PLAN),
    Option("offsetColumn", "text", _MANY, call=PLAN),
    Option("commitTimeColumn", "text", _MANY, call=PLAN),
    Option("streamColumn", "text", (READ, STREAM_READ, MANY)),
    Option("partitionBytes", "bytes", _MANY, default=128 << 20, least=1, call=SPLIT),
    Option("partitionRows", "int", (PYTHON,), least=1),
    Option("minPartitions", "int", _MANY, least=1, call=SPLIT),
    Option("failOnDataLoss", "bool", _MANY, default=True, call=PLAN),
    Option("readCacheBytes", "bytes", _MANY, default=128 << 20, call=PLAN),
    Option("maxRowsPerTrigger", "int", (STREAM_READ, MANY), least=1),
    Option("maxBytesPerTrigger", "bytes", (STREAM_READ, MANY), least=1),
    Option("minRowsPerTrigger", "int", (STREAM_READ,), least=1),
    Option("maxTriggerDelay", "age", (STREAM_READ,), default=900),
    Option("readerName", "text", (STREAM_READ,)),
    Option("metadata", "choice", _BATCH, choices=_METADATA),
    Option("createIfMissing", "bool", _WRITES, default=True),
    Option("singleWriter", "bool", _ALL, default=False),
    Option("writerId", "text", _WRITES),
    Option("batchId", "int", (WRITE,)),
    Option("takeover", "bool", (STREAM_READ, *_WRITES), default=False),
    Option("onRepeat", "choice", _WRITES, default="error", choices=("error", "skip")),
    Option("expectedTail", "int", (WRITE,)),
    Option("expectedVersion", "int", (WRITE,)),
    Option("compression", "choice", _WRITES, default="zstd", choices=COMPRESSIONS),
    Option("compressionLevel", "int", (PYTHON,), default=2, least=1),
    Option("frameRows", "int", _WRITES, default=262_144, least=1),
    Option("segmentRows", "int", (PYTHON,), least=1),
    Option("segmentBytes", "bytes", _WRITES, default=512 << 20, least=1),
    Option("segmentFormat", "choice", _WRITES, default="auto", choices=SEGMENT_FORMATS),
    Option("inlineBytes", "bytes", _WRITES, default=64 << 10),
    Option("mergeSchema", "bool", _WRITES, default=False),
    Option("overwriteSchema", "bool", _WRITES, default=False),
    Option("statsColumns", "list", _WRITES),
    Option("keyColumns", "list", _WRITES),
    Option("timeColumn", "text", _WRITES),
    Option("compact", "choice", _WRITES, choices=("auto", "off")),
    Option("compactRows", "int", _BATCH, default=TARGET_ROWS, least=1),
    Option("compactBytes", "bytes", _BATCH, default=TARGET_BYTES, least=1),
    Option("compactMode", "choice", _BATCH, default=MERGE, choices=COMPACT_MODES),
    Option("operation", "choice", (WRITE,), default="append", choices=OPERATIONS),
    Option("copyFrom", "text", (WRITE,)),
    Option("copyMode", "choice", (WRITE,), choices=COPY_MODES),
    Option("copyId", "text", (WRITE,)),
    Option("seal", "bool", (WRITE,), default=False),
)

# Options of other systems, in lower case, after the option of ours that does the same.
_PEERS = """
startCut: startingoffsets startingversion startingtimestamp startingoffsetsbytimestamp
startCut: start_stream_cut streamfromtimestamp stream-from-timestamp scan.snapshot-id
endCut: endingoffsets endingversion endingtimestamp end_stream_cut
versionAsOf: snapshot-id scan.version
timestampAsOf: as-of-timestamp scan.timestamp scan.timestamp-millis
filters: where filter
partitionBytes: maxpartitionbytes split-size read.split.target-size
failOnDataLoss: ignoremissingfiles
maxRowsPerTrigger: maxoffsetspertrigger streaming-max-rows-per-micro-batch
maxBytesPerTrigger: approx_bytes_per_trigger maxfilespertrigger
maxBytesPerTrigger: streaming-max-files-per-micro-batch
minRowsPerTrigger: minoffsetspertrigger read.stream.minrowspertrigger
maxTriggerDelay: read.stream.maxtriggerdelayms
readerName: consumer-id consumerid subscriber kafka.group.id groupidprefix
metadata: streaminfo streams
writerId: txnappid commituser commit.user-prefix
batchId: txnversion commitidentifier
compression: parquet.compression codec write.parquet.compression-codec
segmentBytes: targetfilesize write.target-file-size-bytes maxrecordsperfile
segmentFormat: write.format.default file.format
statsColumns: dataskippingnumindexedcols delta.dataskippingstatscolumns
compact: autooptimize autocompact delta.autooptimize.autocompact auto-compaction
Stream.compact(target_bytes=...): compaction.target-file-size
Stream.compact(target_bytes=...): rewrite-target-file-size-bytes
"""
# Options of other systems that have none here, each with what to do instead.
_FEED = "a stream is its own feed of changes: read it from startCut to endCut, or as readStream"
FOREIGN: Mapping[str, str] = {
    "readchangefeed": _FEED,
    "readchangedata": _FEED,
    "partitionoverwritemode": "a stream has no partitions: overwrite mode replaces all events",
    "replacewhere": "a write can't replace some events: append new ones, shown by key in a latest "
    "table, or erase values with Stream.redact; a read takes filters",
}
PEERS: Mapping[str, str] = {
    peer: ours
    for ours, _, peers in (line.partition(":") for line in _PEERS.splitlines())
    for peer in peers.split()
}


_WHOLE = re.compile(r"\s*[0-9]+\s*")

BY_NAME: Mapping[str, Option] = {option.name.lower(): option for option in TABLE}
# Keys that Spark itself adds to a source's options, and `NOTES`.
_SPARKS_OWN = frozenset(
    {"paths", "checkpointlocation", "queryname", "location", "provider", "owner", "comment"}
    | {"external", "collation", "serialization.format", "is_managed_location"}
    | {"__datetime_rebase_mode", NOTES}
)


def default(name: str) -> Any:
    """Return the default of an option."""
    return BY_NAME[name.lower()].default


def parse_options(given: Mapping[str, Any], scope: str, *others: str) -> dict[str, Any]:
    """Return the options of a read or a write with typed values, and defaults filled in.

    Names in `given` may have any case; Spark's own keys are ignored. `scope` is `READ`, `WRITE`,
    `STREAM_READ` or `STREAM_WRITE`. `others` are further allowed scopes, for a caller that does not
    know yet which one applies. The result has a value for every option of the scopes, under its
    name in the table. Errors name the nearest known option, the scope of an option, or our name for
    another system's option.
    """
    scopes = {scope, *others}
    parsed = {option.name: option.default for option in TABLE if scopes & {*option.scopes}}
    for name, value in given.items():
        key = name.lower()
        if key in _SPARKS_OWN or key.startswith(("option.", "spark.")):
            continue
        option = BY_NAME.get(key)
        if option is None:
            raise _unknown(name, scope, scopes)
        if not scopes & {*option.scopes}:
            raise InvalidInputError(
                f"option belongs to a {option.scopes[0]}, not to a {scope}",
                remedy=f"remove it from the {scope}",
                option=option.name,
            )
        if value is not None:
            parsed[option.name] = parse_value(option, value)
    return parsed


def refuse_others(given: Mapping[str, Any], scope: str, fact: str, remedy: str) -> None:
    """Raise InvalidInputError if options of other scopes are given."""
    known = [BY_NAME.get(name.lower()) for name in given]
    if others := [one.name for one in known if one and scope not in one.scopes]:
        raise InvalidInputError(fact, remedy=remedy, options=others)


def parse_value(option: Option, value: Any) -> Any:
    """Return the typed value of an option, or raise InvalidInputError."""
    match option.kind:
        case "bool":
            return _boolean(option, value)
        case "int" | "bytes" | "age" | "version":
            return _number(option, value)
        case "list":
            return _names(option, value)
        case "json":
            return _json_object(option, value)
        case "choice":
            words = {choice.lower(): choice for choice in option.choices}
            word = str(value).strip().lower()
            if word not in words:
                raise _wrong(option, value, "one of " + ", ".join(option.choices))
            return words[word]
    if not isinstance(value, str | int) or value == "":
        raise _wrong(option, value, "a text that is not empty")
    return str(value)


def _unknown(name: str, scope: str, scopes: set[str]) -> InvalidInputError:
    import difflib  # noqa: PLC0415 - for an error alone

    key = name.lower()
    if key in FOREIGN:
        return InvalidInputError(
            "option belongs to another system", remedy=FOREIGN[key], option=name
        )
    peer = PEERS.get(key)
    if peer is not None:
        return InvalidInputError(
            "option belongs to another system", remedy=f"use {peer}", option=name
        )
    known = {option.name.lower(): option.name for option in TABLE if scopes & {*option.scopes}}
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
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


def _number(option: Option, value: Any) -> int | str:
    expected = f"an integer of at least {option.least}"
    if option.kind == "bytes":
        expected += ", with k, m, g or t for powers of 1024"
    elif option.kind == "version":
        expected += ", or tag:NAME"
    elif option.kind == "age":
        expected = "an age such as 15m, with one of the units s, m, h, d and w"
    if isinstance(value, bool):
        raise _wrong(option, value, expected)
    text = str(value)
    if option.kind == "version" and text.startswith("tag:"):
        return text
    if option.kind == "age":
        number = parse_duration(text)
    else:
        number = parse_size(text) if option.kind == "bytes" or _WHOLE.fullmatch(text) else None
    if number is None or not option.least <= number < 2**63:
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
    if not (found or value == "[]") or not all(isinstance(name, str) and name for name in found):
        raise _wrong(option, value, "a comma list or a JSON array of names")
    if len(set(found)) != len(found):
        raise _wrong(option, value, "each name once")
    return tuple(found)


def _json_object(option: Option, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            # No cause: it would quote the text, which may contain a secret.
            raise _wrong(option, value, "a JSON object") from None
    if not isinstance(value, Mapping):
        raise _wrong(option, value, "a JSON object")
    return dict(value)
