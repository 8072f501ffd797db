"""The object store: typed status objects by name, written once and checked on every read.

An object is an envelope of one value, named `status/<version>-<kind>-<digest>`. The digest is the
envelope's own, so a reader that has the name can check the bytes, and equal values planned on the
same version share one object. A part also has statistics after its envelope, in envelopes of their
own that the first one lists.

Each object has a twin: the same bytes under the same name in `twins/`. Both are put before a commit
names the object, and the twin is deleted first. A read that finds the object damaged or gone reads
the twin. Metadata names only the object.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, TypeVar

from segstore_ds.errors import (
    CorruptionError,
    EmptyObjectError,
    FormatError,
    MissingObjectError,
    TruncatedObjectError,
)
from segstore_ds.format import names
from segstore_ds.format.envelope import (
    RAW_LIMIT_BYTES,
    decode_envelope,
    envelope_digest,
    split_envelope,
)
from segstore_ds.format.parts.kinds import KINDS, SEGMENTS, Kind, T, encode_object
from segstore_ds.format.parts.segments import Part
from segstore_ds.format.root import BlobRef, PartRef
from segstore_ds.storage import Storage
from segstore_ds.storage.base import at_once

_LOG = logging.getLogger(__name__)
_CACHED_OBJECTS = 64
_CACHED_ROWS = 1 << 18  # of all cached objects together; the newest is kept whatever its size
_ROW_BYTES = 256  # this many bytes behind an envelope count as a row


R = TypeVar("R")
Ref = PartRef | BlobRef  # both have the path, and the length of the envelope


class RowCache:
    """The values that were kept last, by key; each counts as a number of rows.

    Thread-safe without a lock, which could stay held in a forked child: each step is one operation
    of a dict, and these are atomic.
    """

    def __init__(self) -> None:
        self._values: OrderedDict[str, tuple[int, Any]] = OrderedDict()

    def get(self, key: str) -> Any:
        """Return a value, or None."""
        found = self._values.get(key)
        return None if found is None else found[1]

    def keep(self, key: str, rows: int, value: object) -> None:
        """Keep a value, and evict the oldest ones if there are too many."""
        self._values.pop(key, None)
        self._values[key] = (rows, value)
        while len(held := list(self._values.values())) > 1 and (
            len(held) > _CACHED_OBJECTS or sum(size for size, _ in held) > _CACHED_ROWS
        ):
            with suppress(KeyError):  # other threads have evicted the rest
                self._values.popitem(last=False)


class ObjectStore:
    """Reads and writes the status objects of one stream; the last few stay in memory."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._cache = RowCache()

    def put(self, version: int, kind: Kind[T], value: T, behind: bytes = b"") -> BlobRef:
        """Write a value and its twin; `version` is the newest version that the writer has seen."""
        data = encode_object(kind, value)
        path = names.build_status_path(version, kind.name, envelope_digest(data))
        whole = data + behind
        puts = [
            partial(self.storage.put_named, each, whole) for each in (path, names.twin_of(path))
        ]
        if self.storage.profile.is_far:
            at_once(puts)  # no commit names the object before both have returned
        else:
            for put in puts:
                put()
        self._cache.keep(path, len(value), value)
        return BlobRef(path, len(data))

    def get(self, ref: Ref, kind: Kind[T]) -> T:
        """Return the value of an object; do not read the bytes behind its envelope."""
        _check_kind(ref.path, kind)
        found = self._cache.get(ref.path)
        if found is not None:
            value: T = found
            return value

        def read(path: str) -> T:
            if kind.name == SEGMENTS.name:
                data = self._front(path, ref.bytes)
            else:
                data = self.storage.get(path, limit_bytes=min(ref.bytes, RAW_LIMIT_BYTES))
            return self._decode(data, path, kind)

        value = self._either(ref.path, read)
        self._cache.keep(ref.path, len(value), value)
        return value

    def get_all(self, ref: Ref, kind: Kind[T]) -> tuple[T, bytes]:
        """Return the value of an object and the bytes behind its envelope."""
        if self._cache.get(ref.path) is not None:
            value = self.get(ref, kind)
            behind = self._cache.get(_tail_key(ref.path)) if _tail(value) else b""
            if behind is not None:
                return value, behind
        return self.read(ref.path, kind, ref.bytes)

    def read(self, path: str, kind: Kind[T], size: int | None = None) -> tuple[T, bytes]:
        """Read a whole object; without `size` the envelope says its own length."""
        _check_kind(path, kind)

        def read(path: str) -> tuple[T, bytes]:
            data = self.storage.get(path, limit_bytes=(size or 0) + 2 * RAW_LIMIT_BYTES)
            front, behind = split_envelope(data) if size is None else (data[:size], data[size:])
            value = self._decode(front, path, kind)
            check_behind(value, behind, where=self._where(path))
            return value, behind

        value, behind = self._either(path, read)
        self._cache.keep(path, len(value), value)
        rows = max(len(value), len(behind) // _ROW_BYTES)
        self._cache.keep(_tail_key(path), rows, behind)
        return value, behind

    def holds(self, ref: Ref) -> bool:
        """Tell whether an object's value is in memory."""
        return self._cache.get(ref.path) is not None

    def behind(self, ref: Ref, start: int, end: int, parse: Callable[[bytes], R]) -> R:
        """Return a range of the bytes behind the envelope, checked and parsed by `parse`."""
        held: bytes | None = b"" if start == end else self._cache.get(_tail_key(ref.path))
        if held is not None:
            with suppress(FormatError):
                return parse(held[start:end])
        first, last = ref.bytes + start, ref.bytes + end
        return self._either(ref.path, lambda path: parse(self.storage.get_range(path, first, last)))

    def where(self, ref: Ref) -> str:
        """Return the location of an object, for errors."""
        return self._where(ref.path)

    def _either(self, path: str, read: Callable[[str], R]) -> R:
        return read_either(self.storage, path, read)

    def _where(self, path: str) -> str:
        return f"{self.storage.url}/{path}"

    def _decode(self, data: bytes, path: str, kind: Kind[T]) -> T:
        where, digest = self._where(path), names.parse_status_digest(path)
        body = decode_envelope(data, where=where, digest=digest)
        return kind.decode(body, where=where)

    def _front(self, path: str, size: int) -> bytes:
        try:
            return self.storage.get_range(path, 0, min(size, RAW_LIMIT_BYTES))
        except TruncatedObjectError as error:
            # An empty object and a truncated one are different errors.
            if self.storage.info(path).size == 0:
                raise EmptyObjectError("object is empty", where=self._where(path)) from error
            raise


def read_either(storage: Storage, path: str, read: Callable[[str], R]) -> R:
    """Return `read` of a status object's path, or of its twin's if the object is damaged.

    Raises FormatError if both are damaged; MissingObjectError only if both are gone.
    """
    try:
        return read(path)
    except FormatError as error:
        try:
            found = read(names.twin_of(path))
        except FormatError as second:
            both_gone = isinstance(second, MissingObjectError)
            worse = second if isinstance(error, MissingObjectError) and not both_gone else error
            raise worse from None
        _warn(storage.describe(path))
        return found


@lru_cache(maxsize=1024)
def _warn(where: str) -> None:
    """Warn of a damaged object once, not in each read."""
    _LOG.warning(
        "status object is damaged or gone, its twin was read; repair restores it: %s", where
    )


def read_sound(storage: Storage, path: str) -> bytes:
    """Return the bytes of a status object, from its twin if it is damaged."""

    def read(name: str) -> bytes:
        data = storage.get(name)
        check_object(name, data, where=storage.describe(name))
        return data

    return read_either(storage, path, read)


def check_object(path: str, data: bytes, *, where: str) -> None:
    """Raise FormatError unless bytes are the complete object of this path."""
    front, behind = split_envelope(data)
    body = decode_envelope(front, where=where, digest=names.parse_status_digest(path))
    kind = KINDS.get(names.parse_status_kind(path) or "")
    if kind is None:
        return  # a kind of a later version
    value = kind.decode(body, where=where)
    check_behind(value, behind, where=where)
    for each in (value.stats, value.filters) if isinstance(value, Part) else ():
        if each.bytes:
            decode_envelope(behind[: each.bytes], where=where, digest=each.digest)
        behind = behind[each.bytes :]


def check_behind(value: object, behind: bytes, *, where: str) -> None:
    """Raise CorruptionError unless as many bytes follow a value's envelope as the value says."""
    if len(behind) != _tail(value):
        raise CorruptionError(
            "bytes behind an object have the wrong length",
            where=where,
            expected=_tail(value),
            actual=len(behind),
        )


def is_whole(path: str, data: bytes) -> bool:
    """Tell whether bytes are the complete object of this path; see `check_object`."""
    try:
        check_object(path, data, where=path)
    except FormatError:
        return False
    return True


def _check_kind(path: str, kind: Kind[Any]) -> None:
    if names.parse_status_kind(path) != kind.name:
        raise CorruptionError("object is of another kind", path=path, expected=kind.name)


def _tail(value: object) -> int:
    return value.behind_bytes if isinstance(value, Part) else 0


def _tail_key(path: str) -> str:
    return f"{path} tail"
