"""Builds and parses the names of all objects of a stream, relative to its root (FORMAT.md 1).

Names from metadata pass through the `check_*` functions before they reach storage, so metadata can
never name anything outside the stream.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from segstore_ds.checksum import crc32
from segstore_ds.errors import CorruptionError, InvalidInputError

LOG_FOLDER = "log"
HINT_PATH = "log/_latest"
STATUS_FOLDER = "status"
TWINS_FOLDER = "twins"  # copies of all status objects, under the same names
SEGMENTS_FOLDER = "segments"
READERS_FOLDER = "readers"
READER_HINTS_FOLDER = "readers/_latest"
# Of published tables: their metadata, and files of their own. Not in `FOLDERS`, because no stream
# may begin in a folder with a table.
DELTA_FOLDER, DELTA_LOG_FOLDER = "delta", "_delta_log"
ICEBERG_FOLDER, ICEBERG_METADATA_FOLDER = "iceberg", "metadata"
TABLE_FOLDERS = (DELTA_FOLDER, DELTA_LOG_FOLDER, ICEBERG_FOLDER, ICEBERG_METADATA_FOLDER)
ASIDE_FOLDER = "aside"  # where a repair moves files that are not the stream's

# The folder in paths of inline segments; no object has such a name.
_INLINE_FOLDER = "inline"
_OUTLINED = "0-inline-0.arrow"
_COPY = "copy-"
COPIED = f"{SEGMENTS_FOLDER}/{_COPY}"  # prefix of all that copies stage

FOLDERS = (LOG_FOLDER, STATUS_FOLDER, TWINS_FOLDER, SEGMENTS_FOLDER, READERS_FOLDER)

LOG_NAME_DIGITS = 20
MAX_NUMBER = 10**18  # numbers of log files stay within int64
_LOG_NAME = re.compile(r"[0-9]{20}")
_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,100}/[A-Za-z0-9][A-Za-z0-9.-]{0,100}")
_STATUS = re.compile(r"(status|twins)/([0-9]{20})-([a-z]+)-([0-9a-f]{32})")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PIECE = re.compile(r"([0-9]{1,19})-([0-9]{1,19})-([0-9a-f]{12})\.json")
_PLANNED = re.compile(r"([0-9]{20})-[0-9a-f]{12}")
REDACTED = "redact"  # On disk: the attempt in the names of segments that a redaction writes.
# Names that writers build; readers accept more. Objects with other names are never deleted.
_OBJECT = re.compile(
    r"log/(?:00[0-9]{18}|_latest)"
    r"|(?:status|twins)/[0-9]{20}-[a-z]+-[0-9a-f]{32}"
    r"|segments/(?:[0-9]{20}-[0-9a-f]{12}|copy-[A-Za-z0-9][A-Za-z0-9-]{0,63})"
    r"/[0-9a-f]+-[A-Za-z0-9-]+\.(?:arrow|parquet)"
    r"|segments/copy-[A-Za-z0-9][A-Za-z0-9-]{0,63}/(?:plan|[0-9]{1,19}-[0-9]{1,19}-[0-9a-f]{12})\.json"
    r"|readers/(?:[A-Za-z0-9][A-Za-z0-9._-]{0,99}/00[0-9]{18}"
    r"|_latest/[A-Za-z0-9][A-Za-z0-9._-]{0,99})"
)
_TEMPORARY = re.compile(
    r"(?:(?:log|status|twins|_delta_log|metadata|delta|iceberg|(?:segments|readers)/[^/]+)/)?"
    r"\.(?:tmp-[0-9]+-[0-9a-f]{16}(?:-link)?|probe-[0-9a-f]{32})"
)
_HINT = re.compile(r"([0-9]{20})(?: ([0-9]{1,18}) ([!-~]{1,100}) ([!-~]{1,100}) ([0-9a-f]{8}))?")


@dataclass(frozen=True, slots=True)
class Hint:
    """The content of a hint: a log number, and the commit under it when the hint was written.

    A hint without a transaction only says where to look first, and proves nothing.
    """

    number: int
    generation: int = 0
    stream_id: str = ""
    transaction: str = ""


def build_log_name(number: int) -> str:
    """Return the file name of a batch in a metadata log.

    >>> build_log_name(41)
    '00000000000000000041'
    """
    if not 0 <= number < MAX_NUMBER:
        raise InvalidInputError(
            "not a batch id", remedy="use an integer from 0 to 10^18", number=number
        )
    return f"{number:020d}"


def parse_log_name(name: str) -> int | None:
    """Return the number of a log file, or None for any other file.

    >>> parse_log_name('00000000000000000041'), parse_log_name('41'), parse_log_name('_latest')
    (41, None, None)
    """
    if _LOG_NAME.fullmatch(name) is None:
        return None
    number = int(name)
    return number if number < MAX_NUMBER else None


def parse_log_names(found: Iterable[str]) -> list[int]:
    """Return the numbers of the log files among some names, in the given order.

    >>> parse_log_names(['00000000000000000041', '00000000000000000042', '_latest'])
    [41, 42]
    """
    numbers = [int(name) for name in found if _LOG_NAME.fullmatch(name)]
    return [number for number in numbers if number < MAX_NUMBER]


def is_object(path: str) -> bool:
    """Tell whether a path is one that writers build for an object of a stream.

    >>> is_object('log/00000000000000000041'), is_object('log/app.log'), is_object('notes.txt')
    (True, False, False)
    """
    return _OBJECT.fullmatch(path) is not None


def is_temporary(path: str) -> bool:
    """Tell whether a path is one of a temporary object in a folder of a stream.

    >>> is_temporary('log/.tmp-12-0123456789abcdef'), is_temporary('mine/.tmp-1')
    (True, False)
    """
    return _TEMPORARY.fullmatch(path) is not None


def build_hint(hint: Hint) -> bytes:
    """Return the content of a hint; the caller has seen that commit in the log.

    >>> build_hint(Hint(41, 0, "f00", "b42"))
    b'00000000000000000041 0 f00 b42 1b3e5a1a'
    """
    number = build_log_name(hint.number)
    text = f"{number} {hint.generation} {hint.stream_id} {hint.transaction}"
    whole = f"{text} {crc32(text.encode()):08x}"
    return (whole if _HINT.fullmatch(whole) else number).encode()


def parse_hint(content: bytes) -> Hint | None:
    """Parse the content of a hint; None if it is malformed or fails its checksum."""
    match = _HINT.fullmatch(content.decode("ascii", "replace"))
    number = parse_log_name(match[1]) if match else None
    if match is None or number is None:
        return None
    if match[2] is None:
        return Hint(number)
    sound = crc32(content[:-9]) == int(match[5], 16)
    return Hint(number, int(match[2]), match[3], match[4]) if sound else None


def build_token(version: int, nonce: str) -> str:
    """Return the folder name of one write job: the version it was planned on, then random bits.

    `version` is the newest version that the job had seen, and `nonce` is 12 lowercase hex digits.

    >>> build_token(41, '0123456789ab')
    '00000000000000000041-0123456789ab'
    """
    token = f"{build_log_name(version)}-{nonce}"
    if _PLANNED.fullmatch(token) is None:
        raise InvalidInputError("not a token nonce", remedy="use 12 hex digits", nonce=nonce)
    return token


def parse_token_version(token: str) -> int | None:
    """Return the version a token was planned on; None for a token of another kind.

    >>> parse_token_version('00000000000000000041-0123456789ab'), parse_token_version('copy-x')
    (41, None)
    """
    match = _PLANNED.fullmatch(token)
    return int(match[1]) if match else None


def version_prefixes(start: int, end: int) -> list[str]:
    """Return prefixes of the names of versions `[start, end)`; a few other names have them, too.

    >>> version_prefixes(1250, 1502)
    ['000000000000000012', '000000000000000013', '000000000000000014', '000000000000000015']
    """
    digits = len(str(end - start)) - 1
    blocks = range(start // 10**digits, (end - 1) // 10**digits + 1)
    return [f"{block:0{LOG_NAME_DIGITS - digits}d}" for block in blocks]


def build_segment_path(token: str, name: str) -> str:
    """Return a segment's path as metadata stores it: ``token/name``."""
    path = f"{token}/{name}"
    if _SEGMENT.fullmatch(path) is None:
        raise InvalidInputError("not a segment name", token=token, name=name)
    return path


def check_segment_path(path: str, *, where: str) -> str:
    """Return a segment's path from metadata unchanged; CorruptionError if it is malformed."""
    if not isinstance(path, str) or _SEGMENT.fullmatch(path) is None or is_inline(path):
        raise CorruptionError(
            "path in metadata is not a segment of this stream", where=where, path=path
        )
    return path


def build_inline_path(segment_id: int) -> str:
    """Return the path of an inline segment.

    >>> build_inline_path(5), is_inline(build_inline_path(5))
    ('inline/0000000000000005.arrow', True)
    """
    return f"{_INLINE_FOLDER}/{segment_id:016x}.arrow"


def is_inline(path: str) -> bool:
    """Tell whether a segment's path is that of an inline segment, which has no object."""
    return path.startswith(f"{_INLINE_FOLDER}/")


def build_outlined_path(version: int, digest: str) -> str:
    """Return the path of the object of segments that were inline until a version.

    Its name has the digest of its content, as that of a status object.

    >>> path = build_outlined_path(41, '0123456789abcdef')
    >>> path, is_outlined(path)
    ('00000000000000000041-0123456789ab/0-inline-0.arrow', True)
    """
    return build_segment_path(build_token(version, digest[:12]), _OUTLINED)


def is_outlined(path: str) -> bool:
    """Tell whether a segment's path was built by `build_outlined_path`."""
    return path.endswith(f"/{_OUTLINED}")


def is_redacted(path: str) -> bool:
    """Tell whether a redaction wrote a segment.

    >>> is_redacted('segments/00000000000000000041-0123456789ab/0-redact-0.parquet')
    True
    """
    return f"-{REDACTED}-" in path.rpartition("/")[2]


def build_copy_token(copy_id: str) -> str:
    """Return the name of the folder that holds the objects of a copy."""
    return f"{_COPY}{copy_id}"


def parse_copy_token(token: str) -> str | None:
    """Return the id of the copy whose objects a folder holds; None for a token of another kind."""
    return token.removeprefix(_COPY) if token.startswith(_COPY) else None


def build_copy_plan(copy_id: str) -> str:
    """Return the name of the plan of a copy by events."""
    return f"{SEGMENTS_FOLDER}/{build_copy_token(copy_id)}/plan.json"


def build_piece(copy_id: str, start: int, end: int, made_by: str) -> str:
    """Return the name of the object that lists the segments of some events of a copy.

    `made_by` is 12 hex digits that identify the schema or the transformation.

    >>> path = build_piece("c", 10, 25, "0123456789ab")
    >>> path, parse_piece(path), is_object(path)
    ('segments/copy-c/10-25-0123456789ab.json', (10, 25, '0123456789ab'), True)
    """
    name = f"{start}-{end}-{made_by}.json"
    return f"{SEGMENTS_FOLDER}/{build_copy_token(copy_id)}/{name}"


def parse_piece(path: str) -> tuple[int, int, str] | None:
    """Return range and `made_by` of a path that `build_piece` built; None for other paths."""
    match = _PIECE.fullmatch(path.rpartition("/")[2])
    return (int(match[1]), int(match[2]), match[3]) if match else None


def segment_token(path: str) -> str:
    """Return the token of a segment's path."""
    return path.split("/", 1)[0]


def segment_object(path: str) -> str:
    """Return the name of a segment's object, relative to the stream's root."""
    return f"{SEGMENTS_FOLDER}/{path}"


def segment_place(path: str, version: int) -> str:
    """Return the place of a segment of a version, for errors: its object, or the commit file.

    >>> segment_place("inline/0000000000000005.arrow", 41)
    'log/00000000000000000041: segments/inline/0000000000000005.arrow'
    """
    name = f"{SEGMENTS_FOLDER}/{path}"
    return f"{LOG_FOLDER}/{build_log_name(version)}: {name}" if is_inline(path) else name


def build_status_path(version: int, kind: str, digest: str) -> str:
    """Return the name of a status object: the version it was planned on, its kind, its digest."""
    return check_status_path(
        f"{STATUS_FOLDER}/{build_log_name(version)}-{kind}-{digest}", where="build"
    )


def check_status_path(path: str, *, where: str) -> str:
    """Return a status object's name from metadata unchanged; CorruptionError for no such name."""
    match = _STATUS.fullmatch(path) if isinstance(path, str) else None
    if match is None or match[1] != STATUS_FOLDER:
        raise CorruptionError(
            "path in metadata is not a status object of this stream", where=where, path=path
        )
    return path


def is_status(path: str) -> bool:
    """Tell whether a path is in the folder of status objects or of their twins."""
    return path.startswith((f"{STATUS_FOLDER}/", f"{TWINS_FOLDER}/"))


def twin_of(path: str) -> str:
    """Return the other name of a status object, under which the same bytes are stored.

    >>> twin_of("status/x"), twin_of("twins/x")
    ('twins/x', 'status/x')
    """
    folder, _, name = path.partition("/")
    return f"{STATUS_FOLDER if folder == TWINS_FOLDER else TWINS_FOLDER}/{name}"


def both_names(path: str) -> tuple[str, str]:
    """Return the two names of a status object in the order in which they are deleted.

    The twin is first: while the object's own name exists, its deletion is not complete.
    """
    return twin_of(path), path


def parse_status_kind(path: str) -> str | None:
    """Return the kind of a status object; None for another name.

    >>> parse_status_kind('status/00000000000000000041-tags-' + 32 * '0')
    'tags'
    """
    match = _STATUS.fullmatch(path)
    return match[3] if match else None


def parse_status_version(path: str) -> int | None:
    """Return the version a status object was planned on; None for another name."""
    match = _STATUS.fullmatch(path)
    return int(match[2]) if match else None


def staged_version(path: str) -> int | None:
    """Return the version that an object was planned on; None for another name.

    >>> staged_version('segments/00000000000000000041-0123456789ab/0-a-0.arrow')
    41
    """
    if path.startswith(f"{SEGMENTS_FOLDER}/"):
        return parse_token_version(segment_token(path.partition("/")[2]))
    return parse_status_version(path)


def parse_status_digest(path: str) -> str | None:
    """Return the digest in the name of a status object; None for another name."""
    match = _STATUS.fullmatch(path)
    return match[4] if match else None


def check_label(label: str, *, what: str) -> str:
    """Return the name of a tag or a reader unchanged; InvalidInputError if it is malformed.

    >>> check_label('eod-2026.11', what='tag')
    'eod-2026.11'
    """
    if not isinstance(label, str) or _LABEL.fullmatch(label) is None:
        raise InvalidInputError(
            f"not a name of a {what}",
            remedy="give 1 to 100 letters, digits, dots, dashes and underscores, "
            "the first a letter or a digit",
            name=label,
        )
    return label


def reader_folder(name: str) -> str:
    """Return the folder of a reader's records; InvalidInputError if the name is malformed."""
    return f"{READERS_FOLDER}/{check_label(name, what='reader')}"


def reader_hint(name: str) -> str:
    """Return the path of a reader's hint, outside of the folder of its records."""
    return f"{READER_HINTS_FOLDER}/{check_label(name, what='reader')}"
