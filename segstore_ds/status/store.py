"""The object store: typed status objects by name, written once and checked on every read.

An object is an envelope of one value, named `status/<version>-<kind>-<digest>`. The digest is the
envelope's own, so a reader that has the name can check the bytes, and equal values planned on the
same version share one object. A part also has statistics after its envelope, in envelopes of their
own that the first one lists.
"""

from collections import OrderedDict
from contextlib import suppress
from typing import Any

from segstore_ds.errors import (
    CorruptionError,
    EmptyObjectError,
    FormatError,
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

_CACHED_OBJECTS = 64
_CACHED_ROWS = 1 << 18  # in all cached objects together; the newest is kept whatever its size
_ROW_BYTES = 256  # of what lies behind an object: more of them count as more rows


Ref = PartRef | BlobRef  # both have a name, and the length of the envelope


class RowCache:
    """The values that were used last, by key; each stands for a number of rows.

    Threads may share it: each step is one operation of the dict, which Python does not interrupt. A
    lock could stay held in a forked child.
    """

    def __init__(self) -> None:
        self._values: OrderedDict[str, tuple[int, Any]] = OrderedDict()

    def get(self, key: str) -> Any:
        """Return a value, or None."""
        found = self._values.get(key)
        return None if found is None else found[1]

    def keep(self, key: str, rows: int, value: object) -> None:
        """Keep a value, and drop the oldest ones if there are too many."""
        self._values.pop(key, None)
        self._values[key] = (rows, value)
        while len(held := list(self._values.values())) > 1 and (
            len(held) > _CACHED_OBJECTS or sum(size for size, _ in held) > _CACHED_ROWS
        ):
            with suppress(KeyError):  # other threads have dropped the rest
                self._values.popitem(last=False)


class ObjectStore:
    """Reads and writes the status objects of one stream; the last few stay in memory."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._cache = RowCache()

    def put(self, version: int, kind: Kind[T], value: T, behind: bytes = b"") -> BlobRef:
        """Write a value; `version` is the newest version that the writer has seen."""
        data = encode_object(kind, value)
        path = object_path(version, kind, data)
        self.storage.put_named(path, data + behind)
        self._cache.keep(path, len(value), value)
        return BlobRef(path, len(data))

    def get(self, ref: Ref, kind: Kind[T]) -> T:
        """Return the value of an object; reads nothing behind its envelope."""
        _check_kind(ref.path, kind)
        found = self._cache.get(ref.path)
        if found is not None:
            value: T = found
            return value
        if kind.name == SEGMENTS.name:
            data = self._front(ref)
        else:
            data = self.storage.get(ref.path, limit_bytes=min(ref.bytes, RAW_LIMIT_BYTES))
        value = self._decode(data, ref.path, kind)
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
        """Read an object whole; without the envelope's `size`, the envelope itself says it."""
        _check_kind(path, kind)
        data = self.storage.get(path, limit_bytes=(size or 0) + 2 * RAW_LIMIT_BYTES)
        front, behind = split_envelope(data) if size is None else (data[:size], data[size:])
        value = self._decode(front, path, kind)
        if len(behind) != _tail(value):
            raise CorruptionError(
                "bytes behind an object have the wrong length",
                where=f"{self.storage.url}/{path}",
                expected=_tail(value),
                actual=len(behind),
            )
        self._cache.keep(path, len(value), value)
        rows = max(len(value), len(behind) // _ROW_BYTES)
        self._cache.keep(_tail_key(path), rows, behind)
        return value, behind

    def check_size(self, ref: Ref, kind: Kind[T]) -> None:
        """Raise CorruptionError if an object is longer or shorter than its envelope says."""
        expected = ref.bytes + _tail(self.get(ref, kind))
        actual = self.storage.info(ref.path).size
        if actual != expected:
            raise CorruptionError(
                "object has the wrong length",
                where=self.where(ref),
                expected=expected,
                actual=actual,
            )

    def holds(self, ref: Ref) -> bool:
        """Tell whether an object's value is in memory."""
        return self._cache.get(ref.path) is not None

    def behind(self, ref: Ref, start: int, end: int) -> bytes:
        """Return a range of what lies behind the envelope of an object, as it is stored."""
        if start == end:
            return b""
        held: bytes | None = self._cache.get(_tail_key(ref.path))
        if held is not None:
            return held[start:end]
        return self.storage.get_range(ref.path, ref.bytes + start, ref.bytes + end)

    def where(self, ref: Ref) -> str:
        """Return the location of an object, for errors."""
        return f"{self.storage.url}/{ref.path}"

    def _decode(self, data: bytes, path: str, kind: Kind[T]) -> T:
        where, digest = f"{self.storage.url}/{path}", names.parse_status_digest(path)
        body = decode_envelope(data, where=where, digest=digest)
        return kind.decode(body, where=where)

    def _front(self, ref: Ref) -> bytes:
        try:
            return self.storage.get_range(ref.path, 0, min(ref.bytes, RAW_LIMIT_BYTES))
        except TruncatedObjectError as error:
            # An empty object and a truncated one are different errors.
            if self.storage.info(ref.path).size == 0:
                raise EmptyObjectError("object is empty", where=self.where(ref)) from error
            raise


def object_path(version: int, kind: Kind[Any], data: bytes) -> str:
    """Return the name of an object planned on a version; `data` begins with its envelope."""
    return names.build_status_path(version, kind.name, envelope_digest(data))


def check_object(path: str, data: bytes, *, where: str) -> None:
    """Raise FormatError if bytes are not all of the object that a name names."""
    front, behind = split_envelope(data)
    body = decode_envelope(front, where=where, digest=names.parse_status_digest(path))
    kind = KINDS.get(names.parse_status_kind(path) or "")
    if kind is None:
        return  # of a later version
    value = kind.decode(body, where=where)
    for each in (value.stats, value.filters) if isinstance(value, Part) else ():
        if each.bytes:
            decode_envelope(behind[: each.bytes], where=where, digest=each.digest)
        behind = behind[each.bytes :]
    if behind:
        raise CorruptionError("bytes behind an object have the wrong length", where=where)


def is_whole(path: str, data: bytes) -> bool:
    """Tell whether bytes are all of the object that a name names; see `check_object`."""
    try:
        check_object(path, data, where=path)
    except FormatError:
        return False
    return True


def is_proven(ref: Ref, data: bytes) -> bool:
    """Tell whether rebuilt bytes are the object that a reference names, byte for byte."""
    return envelope_digest(data) == names.parse_status_digest(ref.path)


def _check_kind(path: str, kind: Kind[Any]) -> None:
    if names.parse_status_kind(path) != kind.name:
        raise CorruptionError("object is of another kind", path=path, expected=kind.name)


def _tail(value: object) -> int:
    return value.behind_bytes if isinstance(value, Part) else 0


def _tail_key(path: str) -> str:
    return f"{path} tail"
