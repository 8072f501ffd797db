"""Locations of streams: one canonical URL for every way to write a location.

Parses the locations that Python, Spark and the command line pass. Pure: it opens nothing and sends
no request; only a relative path depends on the current directory. A location that is ambiguous, or
that could mean another place than the caller thinks (``s3:/bucket``, ``~``, a list of paths), is
refused, and the error says how to write it.
"""

import json
import os
import posixpath
import re
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import unquote

from segstore_ds.errors import InvalidInputError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):(.*)", re.DOTALL)
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)(:/*)(.*)", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "az": "abfs"}
BUCKETS = ("s3", "gs", "abfs")
_NAMELESS = ("file", "memory")
_OURS = (*BUCKETS, *_NAMELESS)  # known without fsspec
_ARCHIVES = (".egg", ".jar", ".zip")
_STRAY_BYTE = re.compile("[\udc80-\udcff]")
_ABFS_HOST = re.compile(r"[^@:]+@[A-Za-z0-9.\-]+")
# In these schemes the text before an @ is a user name only if it has a colon and a password.
_USERLESS = frozenset({"file", "memory", "abfs", "abfss", "az"})
# Filesystems that wrap another one, or that can't store a stream.
_NO_PLACE = frozenset(
    {"abstract", "arrow_hdfs", "async_wrapper", "asynclocal", "blockcache", "cached", "data", "dir"}
    | {"filecache", "generic", "git", "github", "gitlab", "http", "https", "jlab", "jupyter"}
    | {"libarchive", "local", "reference", "root", "simplecache", "tar", "zip"}
)


@dataclass(frozen=True, slots=True)
class Location:
    """The place of a stream or of a folder of streams.

    `scheme` is `file`, `memory`, `s3`, `gs`, `abfs` or another scheme of fsspec. `url` is the
    canonical URL, without a trailing slash and without secrets, because errors show it. `path` is
    the same place in the filesystem's own form, without the scheme.
    """

    scheme: str
    url: str
    path: str


def resolve_location(url: str | os.PathLike[str]) -> Location:
    """Parse a path, a `pathlib.Path` or a URL into its canonical location.

    `file:/x`, `file:///x` and `/x` are one location, and `s3a` and `s3n` are `s3`. Resolving a
    canonical URL again gives the same location. `..` is resolved as text: symbolic links are not
    followed.
    """
    text = _location_text(url)
    matched = _SCHEME.fullmatch(text)
    if not matched:
        return _local(text)
    scheme, rest = matched[1].lower(), matched[2]
    if scheme == "file":
        return _file_uri(text, rest)
    scheme = _ALIASES.get(scheme, scheme)
    if scheme not in _OURS and (scheme in _NO_PLACE or not _knows(scheme)):
        raise InvalidInputError(
            "unknown scheme in location",
            remedy="use a path, file://, memory://, s3://, gs:// or abfs://; "
            "write ./ before a local name that holds a colon",
            location=shown(text),
        )
    _refuse_unwritable(text, text)
    if not rest.startswith("//"):
        raise InvalidInputError(
            "location has no // after its scheme",
            remedy=f"write {scheme}://bucket/folder as text (pathlib drops a slash)",
            location=shown(text),
        )
    _refuse_query(text, rest)
    if scheme == "memory":
        path = _normal_parts(rest[2:], text)
        return Location(scheme, f"memory://{path}", f"/{path}" if path else "")
    if scheme in BUCKETS:
        return _bucket(scheme, rest[2:], text)
    return _other(scheme, rest[2:], text)


def _knows(scheme: str) -> bool:
    fsspec = load_fsspec("fsspec.registry")
    return scheme in fsspec.known_implementations or scheme in fsspec.registry


def find_inner(url: str, name: str) -> str | None:
    """Return the canonical URL of a listed folder; None if no location can name it.

    `url` is the canonical URL of the containing folder, and `name` is the folder's name in the
    store. If there is none, no stream can be there.

    >>> find_inner("file:///x", "a?b"), find_inner("s3://b", "a?b")
    ('file:///x/a%3Fb', None)
    """
    outer = resolve_location(url)
    text = _escaped(name) if outer.scheme == "file" else name
    try:
        location = resolve_location(f"{url}/{text}")
    except InvalidInputError:
        return None
    return location.url if location.path == f"{outer.path.rstrip('/')}/{name}" else None


def find_outer(location: Location) -> str | None:
    """Return the canonical URL of the containing folder; None for a disk or bucket.

    >>> find_outer(resolve_location("/a/b")), find_outer(resolve_location("s3://b/x"))
    ('file:///a', 's3://b')
    >>> find_outer(resolve_location("/")), find_outer(resolve_location("s3://b"))
    (None, None)
    """
    scheme, _, rest = location.url.partition("://")
    outer, found, name = rest.rpartition("/")
    # Disk and memory have a root without a name; all others start with a bucket or a host.
    if not name or not (found or scheme in _NAMELESS):
        return None
    return f"{scheme}://{outer}"


def split_pattern(url: str | os.PathLike[str]) -> tuple[str, str] | None:
    """Return folder and pattern of a location whose last part has a *; else None.

    >>> split_pattern("s3://b/streams/eu-*"), split_pattern("s3://b/streams")
    (('s3://b/streams', 'eu-*'), None)
    """
    location = resolve_location(url)
    folder, name = find_outer(location), location.path.rpartition("/")[2]
    if folder is None or "*" not in name:
        return None
    if "*" in folder:
        raise InvalidInputError(
            "only the last part of a location can be a pattern",
            remedy="name the folder that holds the streams, and read several one by one",
            location=location.url,
        )
    return folder, name


def shown(text: str) -> str:
    """Mask possible secrets in a location for an error: user, password, query, fragment.

    >>> shown("s3://key:secret@bucket/x?X-Amz-Signature=abc"), shown("s3://bucket/x#token=abc")
    ('s3://***@bucket/x?***', 's3://bucket/x#***')
    """
    if matched := _ADDRESS.fullmatch(text):
        scheme, start, rest = matched.groups()
        hidden, _, place = rest.rpartition("@")
        # A password may contain slashes, so everything before the last @ is masked.
        user = "@" in rest.partition("/")[0] and scheme.lower() not in _USERLESS
        if ":" in hidden or user:
            text = f"{scheme}{start}***@{place}"
    return re.sub(r"([?#]).*", r"\1***", text, flags=re.DOTALL)


def _location_text(url: object) -> str:
    if isinstance(url, (list, tuple, set, frozenset)):
        raise _list_of_paths(str(len(url)))
    try:
        text = os.fspath(url)  # type: ignore[call-overload]
    except TypeError:
        text = None
    if not isinstance(text, str):
        raise InvalidInputError(
            "location is not a string",
            remedy="pass a str or a pathlib.Path",
            type=type(url).__name__,
        )
    if not text.strip():
        raise InvalidInputError(
            "location is empty", remedy="pass the folder of the stream, such as s3://bucket/stream"
        )
    if _CONTROL.search(text):
        raise InvalidInputError(
            "location holds a control character",
            remedy="remove it (often a line break from a copied text)",
            location=shown(text),
        )
    if "::" in text:
        raise InvalidInputError(
            "chained URLs are not supported",
            remedy="name the store itself, without caches or archives before it",
            location=shown(text),
        )
    if _is_list(text):
        raise _list_of_paths(shown(text))
    if text.startswith("~"):
        raise InvalidInputError(
            "location starts with ~, which is not expanded",
            remedy="pass os.path.expanduser(path), or write ./ before a folder of that name",
            location=shown(text),
        )
    return text


def _refuse_unwritable(text: str, location: str, errors: str = "strict") -> None:
    """Refuse a lone surrogate, which no store can have in a name."""
    try:
        text.encode(errors=errors)
    except UnicodeEncodeError:
        pass
    else:
        return
    raise InvalidInputError(
        "location holds a character that no name can have",
        remedy="remove it (half of a surrogate pair, often from a text that was cut)",
        location=shown(location),
    )


def _is_list(text: str) -> bool:
    if text.startswith("["):
        try:
            return isinstance(json.loads(text), list)
        except (ValueError, RecursionError):
            return False
    parts = [part.strip() for part in text.split(",")]
    return len(parts) > 1 and all("://" in part or part.startswith("/") for part in parts)


def _list_of_paths(value: str) -> InvalidInputError:
    return InvalidInputError(
        "a list of paths is not a location",
        remedy="name one stream; read several of them one by one and union the results",
        location=value,
    )


def _refuse_query(text: str, rest: str) -> None:
    if "?" in rest or "#" in rest:
        raise InvalidInputError(
            "location holds a query or a fragment",
            remedy="remove what follows ? or #, and pass settings in storage_options",
            location=shown(text),
        )


def _normal_parts(path: str, text: str) -> str:
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            if not parts:
                raise InvalidInputError(
                    "location leaves its root with ..",
                    remedy="write the location without ..",
                    location=shown(text),
                )
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def _local(text: str) -> Location:
    absolute = text if text.startswith("/") else posixpath.join(os.getcwd(), text)  # noqa: PTH109
    path = "/" + _normal_parts(absolute, text)
    _refuse_unwritable(path, text, "surrogateescape")
    # Escape only what has a meaning in a URI, so that the URL stays readable.
    return Location("file", "file://" + _escaped(path).rstrip("/"), path)


def _escaped(path: str) -> str:
    text = path.replace("%", "%25").replace("?", "%3F").replace("#", "%23")
    # Escape bytes that are not UTF-8, so that a URL is plain text everywhere.
    return _STRAY_BYTE.sub(lambda found: f"%{ord(found[0]) & 0xFF:02X}", text)


def _file_uri(text: str, rest: str) -> Location:
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise InvalidInputError(
                "file URL names a host",
                remedy="write file:///folder (three slashes)",
                location=shown(text),
            )
        rest = slash + path
    if not rest.startswith("/") and text != "file://":
        raise InvalidInputError(
            "file URL has no absolute path",
            remedy="write file:///folder, or the relative path without file:",
            location=shown(text),
        )
    if "?" in rest or "#" in rest:
        raise InvalidInputError(
            "file URL holds a query or a fragment",
            remedy="write %3F and %23 for ? and #, or pass the plain path",
            location=shown(text),
        )
    path = unquote(rest, errors="surrogateescape")
    if _CONTROL.search(path):
        raise InvalidInputError(
            "location holds a control character", remedy="remove it", location=shown(text)
        )
    return _local(path or "/")


def _bucket(scheme: str, rest: str, text: str) -> Location:
    bucket, _, key = rest.partition("/")
    account = ""
    if scheme == "abfs" and _ABFS_HOST.fullmatch(bucket):
        bucket, _, account = bucket.partition("@")
    if "@" in bucket or ":" in bucket:
        raise InvalidInputError(
            "location holds a user name, a password or a port",
            remedy="pass credentials and endpoints in storage_options",
            location=shown(text),
        )
    if bucket in ("", ".", "..") or (scheme == "abfs" and "." in bucket):
        raise InvalidInputError(
            "location names no bucket",
            remedy="write s3://bucket/folder, gs://bucket/folder, abfs://container/folder or "
            "abfs://container@account.dfs.core.windows.net/folder",
            location=shown(text),
        )
    key = _normal_parts(key, text)
    tail = f"/{key}" if key else ""
    host = f"{bucket}@{account.lower()}" if account else bucket
    return Location(scheme, f"{scheme}://{host}{tail}", f"{bucket}{tail}")


def _other(scheme: str, rest: str, text: str) -> Location:
    host, _, path = rest.partition("/")
    user, _, port = host.partition(":")
    # A password with a slash: the text between the colon and the slash is then no port.
    cut = "@" in path and port and not port.isdecimal() and not user.startswith("[")
    if cut or (":" in host.partition("@")[0] and "@" in host):
        raise InvalidInputError(
            "location holds a password",
            remedy="pass credentials in storage_options",
            location=shown(text),
        )
    path = _normal_parts(path, text)
    return Location(scheme, f"{scheme}://{host}" + (f"/{path}" if path else ""), f"/{path}")


def load_fsspec(module: str = "fsspec") -> Any:
    """Return fsspec, or a module that imports it; a local location needs neither.

    When it is imported, fsspec searches everything on `sys.path` for entry points. In Spark's
    workers this includes the archives of pyspark, py4j and Spark's core, with ten thousand names,
    which each process would read again. So there archives are not searched.
    """
    # Every worker imports this module of pyspark, and nothing else can.
    if "pyspark.worker_util" in sys.modules and "fsspec" not in sys.modules:
        whole = sys.path
        sys.path = [entry for entry in whole if not entry.endswith(_ARCHIVES)]
        try:
            import_module("fsspec")
        except ImportError:
            pass  # fsspec itself is in an archive
        finally:
            sys.path = whole
    return import_module(module)
