r"""The envelope of every metadata file: a version line, a header line, a body (FORMAT.md 2).

::

    v1\n
    <codec> <stored bytes> <raw bytes> <digest>\n
    <body>

The version line is never compressed, so an old reader can tell a newer file from a damaged one. The
digest covers the rest of the header and the stored body, so truncation and flipped bits are always
detected. A missing file (which the caller reports), an empty, a truncated, a corrupt and a newer
one are five different errors.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import zstandard

from segstore_ds.errors import (
    CorruptionError,
    EmptyObjectError,
    TruncatedObjectError,
    UnsupportedVersionError,
)

FORMAT_VERSION = 1  # On disk. Never change; add a new one.
PLAIN, ZSTD = "plain", "zstd"  # On disk. Never change; add a new one.
COMPRESS_ABOVE_BYTES = 1024
RAW_LIMIT_BYTES = 128 << 20  # for bodies that have no smaller limit

_VERSION_LINE = re.compile(rb"v([1-9][0-9]{0,8})")
_HEADER_LINE = re.compile(rb"([a-z0-9]{1,16}) ([0-9]{1,12}) ([0-9]{1,12}) ([0-9a-f]{32})")
_HEADER_LIMIT_BYTES = 80


def digest_of(*parts: bytes) -> str:
    """Return the digest used for all metadata: BLAKE2b, 16 bytes, as 32 hex digits."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(part)
    return state.hexdigest()


def encode_envelope(body: bytes) -> bytes:
    """Wrap a body, compressed if it is large and that helps; equal bodies give equal bytes."""
    codec, stored = PLAIN, body
    if len(body) > COMPRESS_ABOVE_BYTES:
        compressed = _compress(body)
        if len(compressed) < len(body):
            codec, stored = ZSTD, compressed
    header = f"{codec} {len(stored)} {len(body)}".encode()
    digest = digest_of(header, stored).encode()
    return b"v%d\n%s %s\n%s" % (FORMAT_VERSION, header, digest, stored)


# Idle compressors, as creating one takes longer than compressing a small body. Each serves one
# thread at a time.
_IDLE: Mapping[bool, list[zstandard.ZstdCompressor]] = {False: [], True: []}
# Small tables of 32 KiB: the default ones of up to 192 KiB are out of the CPU's cache at the next
# commit, and then take twice as long for the same result.
_SMALL_BYTES = 32 << 10
_SMALL = zstandard.ZstdCompressionParameters.from_level(1, window_log=15, hash_log=12, chain_log=12)


def _compress(body: bytes) -> bytes:
    small = len(body) <= _SMALL_BYTES
    try:
        compressor = _IDLE[small].pop()
    except IndexError:
        chosen: dict[str, Any] = {"compression_params": _SMALL} if small else {"level": 3}
        compressor = zstandard.ZstdCompressor(**chosen)
    compressed: bytes = compressor.compress(body)
    _IDLE[small].append(compressor)
    return compressed


def envelope_digest(data: bytes) -> str:
    """Return the digest in an envelope's header, unchecked; status objects are named by it."""
    return data.split(b"\n", 2)[1][-32:].decode()


def decode_envelope(
    data: bytes, *, where: str, raw_limit_bytes: int = RAW_LIMIT_BYTES, digest: str | None = None
) -> bytes:
    """Return the body of an envelope, given the whole file.

    A body of more than `raw_limit_bytes` is refused before it is decoded. `digest` is the one that
    the envelope must have, if its name or other metadata says so.

    Raises:
        EmptyObjectError: The file has no bytes.
        TruncatedObjectError: The file ends before its body does.
        CorruptionError: A line is malformed, the digest is wrong, or bytes follow the body.
        UnsupportedVersionError: The format is newer, or the codec is unknown.
    """
    if not data:
        raise EmptyObjectError("file is empty", where=where)
    version_end = parse_version_line(data, where=where)
    header_end = data.find(b"\n", version_end, version_end + _HEADER_LIMIT_BYTES)
    if header_end < 0:
        if len(data) < version_end + _HEADER_LIMIT_BYTES:
            raise TruncatedObjectError("file ends within its header", where=where, bytes=len(data))
        raise CorruptionError("malformed header", where=where)
    match = _HEADER_LINE.fullmatch(data[version_end:header_end])
    if match is None:
        raise CorruptionError("malformed header", where=where)
    stored_bytes, raw_bytes = int(match[2]), int(match[3])
    stored = data[header_end + 1 :]
    if len(stored) < stored_bytes:
        raise TruncatedObjectError(
            "file ends within its body", where=where, expected=stored_bytes, actual=len(stored)
        )
    if len(stored) > stored_bytes:
        raise CorruptionError(
            "extra bytes after the body", where=where, expected=stored_bytes, actual=len(stored)
        )
    header = data[version_end : header_end - 33]
    actual = digest_of(header, stored)
    expected = match[4].decode() if digest is None else digest
    if not actual == match[4].decode() == expected:
        raise CorruptionError("wrong digest", where=where, expected=expected, actual=actual)
    if raw_bytes > raw_limit_bytes:
        raise CorruptionError(
            "body is larger than allowed", where=where, bytes=raw_bytes, limit=raw_limit_bytes
        )
    return _decode_body(match[1].decode(), stored, raw_bytes, where=where)


def split_envelope(data: bytes) -> tuple[bytes, bytes]:
    """Split a file into its first envelope and the bytes after it, unchecked.

    A truncated or damaged file is returned whole as the first element, so that `decode_envelope`
    raises the error.
    """
    lines = data[:_HEADER_LIMIT_BYTES].split(b"\n", 2)
    match = _HEADER_LINE.fullmatch(lines[1]) if len(lines) == 3 else None
    if match is None:
        return data, b""
    end = len(lines[0]) + len(lines[1]) + 2 + int(match[2])
    return data[:end], data[end:]


def parse_version_line(data: bytes, *, where: str) -> int:
    r"""Check the first line and return the offset after it.

    >>> parse_version_line(b'v1\nrest', where='example')
    3
    """
    end = data.find(b"\n", 0, 12)
    if end < 0:
        if len(data) < 12 and (data == b"v" or _VERSION_LINE.fullmatch(data)):
            raise TruncatedObjectError("file ends within its version line", where=where)
        raise CorruptionError("malformed version line", where=where, line=_shown(data))
    match = _VERSION_LINE.fullmatch(data[:end])
    if match is None:
        raise CorruptionError("malformed version line", where=where, line=_shown(data[:end]))
    if int(match[1]) > FORMAT_VERSION:
        raise UnsupportedVersionError(
            "written in a newer format", where=where, found=int(match[1]), supported=FORMAT_VERSION
        )
    return end + 1


def _shown(line: bytes) -> str:
    return line[:16].decode("latin-1")


def _decode_body(codec: str, stored: bytes, raw_bytes: int, *, where: str) -> bytes:
    if codec == ZSTD:
        return decompress(stored, least=raw_bytes, most=raw_bytes, what="body", where=where)
    if codec != PLAIN:
        raise UnsupportedVersionError("unknown codec", where=where, found=codec)
    if len(stored) != raw_bytes:
        raise CorruptionError(
            "body has the wrong length", where=where, expected=raw_bytes, actual=len(stored)
        )
    return stored


def decompress(data: bytes, *, least: int = 0, most: int, what: str, where: str) -> bytes:
    """Decompress a zstd frame whose declared size is within bounds; else CorruptionError."""
    try:
        # Check the declared size first: the library allocates it, whatever limit it gets.
        size = zstandard.frame_content_size(data)
        if not least <= size <= most:
            raise CorruptionError(f"{what} has the wrong length", where=where, bytes=size)
        body: bytes = zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
    except zstandard.ZstdError as error:
        raise CorruptionError(f"{what} does not decompress", where=where) from error
    return body
