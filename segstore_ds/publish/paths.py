"""The names of the objects of published tables, relative to the stream's folder (TABLES.md)."""

import re
from contextlib import suppress
from urllib.parse import unquote

from segstore_ds.format.names import DELTA_LOG_FOLDER, ICEBERG_METADATA_FOLDER, build_log_name

# All names that publishers build. Tables of other programs may have some of them, too.
_PUBLISHED = re.compile(
    r"_delta_log/(?:00[0-9]{18}\.(?:json|checkpoint\.parquet)|_last_checkpoint)"
    r"|metadata/(?:v[1-9][0-9]{0,17}\.metadata\.json|version-hint\.text"
    r"|snap-[0-9]{20}-[0-9a-f]{12}\.avro|m-[0-9]{1,19}-[0-9]{1,19}-[0-9a-f]{12}\.avro)"
    r"|delta/_newest\.text|(?:delta|iceberg)/(?:_unused\.json|[0-9]{20}-[0-9a-f]{16}-[0-9]{1,10}-[0-9a-f]{12}\.parquet)"
)
_ICEBERG_METADATA = re.compile(r"metadata/v([1-9][0-9]{0,17})\.metadata\.json")
_MANIFEST_LIST = re.compile(r"metadata/snap-(00[0-9]{18})-[0-9a-f]{12}\.avro")
_MANIFEST = re.compile(r"metadata/m-([0-9]{1,19})-([0-9]{1,19})-[0-9a-f]{12}\.avro")
_OWN_FILE = re.compile(
    r"((?:delta|iceberg)/[0-9]{20}-[0-9a-f]{16}-[0-9]{1,10})-[0-9a-f]{12}\.parquet"
)
_DELTA_LOG = re.compile(r"_delta_log/(00[0-9]{18})\.(json|checkpoint\.parquet)")


def is_published(path: str) -> bool:
    """Tell whether a path is one that publishers build.

    >>> is_published('_delta_log/00000000000000000041.json'), is_published('metadata/notes.txt')
    (True, False)
    """
    return _PUBLISHED.fullmatch(path) is not None


def location_of(url: str) -> str:
    """Return an Iceberg table's location: the URL, or a plain path if a local URL has escapes.

    Readers do not decode the escapes of local URLs.

    >>> location_of("file:///a"), location_of("file:///a%23b"), location_of("s3://a/b%23c")
    ('file:///a', '/a#b', 's3://a/b%23c')
    """
    with suppress(UnicodeDecodeError):  # such a name has no plain path
        if url.startswith("file://") and "%" in url:
            return unquote(url.removeprefix("file://"), errors="strict")
    return url


def build_delta_path(version: int, kind: str) -> str:
    """Return the path of a published Delta table's commit (`json`) or checkpoint.

    >>> build_delta_path(3, 'json')
    '_delta_log/00000000000000000003.json'
    """
    return f"{DELTA_LOG_FOLDER}/{build_log_name(version)}.{kind}"


def parse_delta_path(path: str) -> tuple[int, str] | None:
    """Return the version and kind in a path of `build_delta_path`; None for any other path."""
    match = _DELTA_LOG.fullmatch(path)
    return (int(match[1]), match[2]) if match else None


def build_iceberg_path(version: int) -> str:
    """Return the path of a version of a published Iceberg table's metadata; the first is 1.

    >>> build_iceberg_path(3)
    'metadata/v3.metadata.json'
    """
    return f"{ICEBERG_METADATA_FOLDER}/v{version}.metadata.json"


def parse_iceberg_path(path: str) -> int | None:
    """Return the version in a path of `build_iceberg_path`; None for any other path."""
    match = _ICEBERG_METADATA.fullmatch(path)
    return int(match[1]) if match else None


def build_manifest_list_path(version: int, nonce: str) -> str:
    """Return the path of the manifest list that a version of the table's metadata names."""
    return f"{ICEBERG_METADATA_FOLDER}/snap-{build_log_name(version)}-{nonce}.avro"


def parse_manifest_list_path(path: str) -> int | None:
    """Return the version in a path of `build_manifest_list_path`; None for any other path."""
    match = _MANIFEST_LIST.fullmatch(path)
    return int(match[1]) if match else None


def build_manifest_path(start: int, end: int, nonce: str) -> str:
    """Return the path of a manifest whose files hold the events ``[start, end)``.

    >>> build_manifest_path(0, 20, "0123456789ab")
    'metadata/m-0-20-0123456789ab.avro'
    """
    return f"{ICEBERG_METADATA_FOLDER}/m-{start}-{end}-{nonce}.avro"


def parse_manifest_path(path: str) -> tuple[int, int] | None:
    """Return the offsets in a path of `build_manifest_path`; None for any other path."""
    match = _MANIFEST.fullmatch(path)
    return (int(match[1]), int(match[2])) if match else None


def build_marks_path(folder: str) -> str:
    """Return the path of the object with the times since when objects have been unused."""
    return f"{folder}/_unused.json"


def own_file_key(folder: str, start: int, segment_id: int, epoch: int) -> str:
    """Return the prefix of the paths of equal own files: without a nonce and the extension.

    They hold the events of a segment from an offset on, in the columns of an epoch.
    """
    return f"{folder}/{start:020d}-{segment_id:016x}-{epoch}"


def published_key(path: str) -> str:
    """Return the key of a published file: the path of a segment, or `own_file_key` of an own file.

    >>> key = own_file_key("delta", 0, 5, 1)
    >>> published_key(f"{key}-0123456789ab.parquet") == key
    True
    """
    match = _OWN_FILE.fullmatch(path)
    return match[1] if match else path
