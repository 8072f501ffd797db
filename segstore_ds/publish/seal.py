"""Digests of published metadata, whose own formats have none: damage must not look like a table.

A JSON file holds the digest of its own bytes, taken with zeros in the digest's place. An Avro file
has it in its name, and a checkpoint in the metadata of its Parquet file.
"""

from segstore_ds.errors import CorruptionError
from segstore_ds.format.envelope import digest_of

UNSEALED = "0" * 32
NAME_DIGITS = 8  # of a digest in a name
_REMEDY = (
    "give other programs read-only credentials; delete the table with published.remove(), then "
    "publish the stream again; move a table that is not the stream's to a folder of its own"
)


def seal(data: bytes, key: str) -> bytes:
    """Return a JSON text without spaces with its digest in the place of `UNSEALED`."""
    return data.replace(_field(key, UNSEALED), _field(key, digest_of(data)), 1)


def check_seal(data: bytes, key: str, digest: object, *, where: str) -> None:
    """Raise CorruptionError unless a JSON text has the digest that it holds."""
    found = digest if isinstance(digest, str) and digest.isascii() else ""
    check_digest(data.replace(_field(key, found), _field(key, UNSEALED), 1), found, where=where)


def check_digest(data: bytes, digest: str, *, where: str) -> None:
    """Raise CorruptionError unless bytes have a digest, or begin with what a name holds of it."""
    if not digest or not digest_of(data).startswith(digest):
        raise CorruptionError(
            "published metadata is damaged, or another program has written it",
            remedy=_REMEDY,
            where=where,
        )


def _field(key: str, digest: str) -> bytes:
    return f'"{key}":"{digest}"'.encode()
