"""The envelope: five different errors, and no flipped bit or cut passes."""

import pytest
import zstandard

from segstore_ds.errors import (
    CorruptionError,
    EmptyObjectError,
    FormatError,
    TruncatedObjectError,
    UnsupportedVersionError,
)
from segstore_ds.format.envelope import (
    decode_envelope,
    digest_of,
    encode_envelope,
)

BODIES = [b"", b"x", b"{}", bytes(range(256)), b"a" * 5000, bytes(range(256)) * 40]


def built(codec: bytes, stored: bytes, raw_bytes: int, *, version: bytes = b"v1") -> bytes:
    header = b"%s %d %d" % (codec, len(stored), raw_bytes)
    return b"%s\n%s %s\n%s" % (version, header, digest_of(header, stored).encode(), stored)


@pytest.mark.parametrize("body", BODIES, ids=len)
def test_a_body_comes_back_and_its_bytes_are_stable(body):
    data = encode_envelope(body)
    assert data == encode_envelope(body)
    assert data.startswith(b"v1\n")
    assert decode_envelope(data, where="x") == body


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"", EmptyObjectError),
        (b"\n", CorruptionError),
        (b"xyz\n", CorruptionError),
        (b"10\n", CorruptionError),
        (b"v0\n", CorruptionError),
        (b"v-10\n", CorruptionError),
        (b"v10.x\n", CorruptionError),
        (b"v01\n", CorruptionError),
        (b"V1\n", CorruptionError),
        (b" v1\n", CorruptionError),
        (b"v1 \n", CorruptionError),
        (b"v1\r\n", CorruptionError),
        (b"v1234567890\n", CorruptionError),
        (b"v\n", CorruptionError),
        (b"v2\n", UnsupportedVersionError),
        (b"v123\n", UnsupportedVersionError),
        (b"v", TruncatedObjectError),
        (b"v1", TruncatedObjectError),
        (b"x", CorruptionError),
        (b"v1" + b"0" * 20, CorruptionError),
    ],
)
def test_a_version_line(line, error):
    with pytest.raises(error) as caught:
        decode_envelope(line + (b"rest" if line.endswith(b"\n") else b""), where="log/7")
    assert caught.type is error
    assert "log/7" in str(caught.value)


@pytest.mark.parametrize("body", [b"hello", b"a" * 5000], ids=["plain", "zstd"])
def test_every_cut_and_every_flipped_bit_is_noticed(body):
    data = encode_envelope(body)
    for end in range(len(data)):
        with pytest.raises(FormatError):
            decode_envelope(data[:end], where="x")
    for place in range(len(data)):
        for bit in range(8):
            bad = bytearray(data)
            bad[place] ^= 1 << bit
            with pytest.raises(FormatError):
                decode_envelope(bytes(bad), where="x")


@pytest.mark.parametrize(
    "header",
    [
        b"plain 1 1",
        b"plain 1 1 " + b"0" * 31,
        b"plain 1 1 " + b"g" * 32,
        b"plain -1 1 " + b"0" * 32,
        b"PLAIN 1 1 " + b"0" * 32,
        b"plain  1 1 " + b"0" * 32,
        b" " * 200,
    ],
)
def test_a_malformed_header(header):
    with pytest.raises(CorruptionError, match="malformed header"):
        decode_envelope(b"v1\n" + header + b"\nx", where="x")


def test_an_unknown_codec_is_a_newer_writers():
    with pytest.raises(UnsupportedVersionError, match="found='brotli'"):
        decode_envelope(built(b"brotli", b"abc", 3), where="x")


@pytest.mark.parametrize(
    ("codec", "stored", "raw_bytes"),
    [
        (b"plain", b"abc", 4),
        (b"zstd", b"not zstd", 3),
        (b"zstd", zstandard.compress(b"abc"), 4),
        (b"zstd", zstandard.compress(b"abc")[:-1], 3),
        (b"zstd", zstandard.ZstdCompressor(write_content_size=False).compress(b"abc"), 3),
        (b"zstd", b"", 0),
    ],
)
def test_a_body_that_contradicts_its_header(codec, stored, raw_bytes):
    with pytest.raises(CorruptionError):
        decode_envelope(built(codec, stored, raw_bytes), where="x")
