"""Fingerprints of batches, by which a repeated batch is compared (FORMAT.md 3.4).

A fingerprint is computed from the statistics that are computed anyway, merged over everything that
was staged. So it does not depend on the order of rows, on how they were split into tasks, frames
and segments, or on the format of segments. A column is compared only if both batches have it, in
types with comparable bounds, and know the same of its bounds. So the same rows never look
different.
"""

import base64
import binascii
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from hashlib import blake2b

import pyarrow as pa

from segstore_ds.errors import CorruptionError
from segstore_ds.format.bounds import Bound, Bounds, Piece, compute, merge

COLUMNS_MOST = 32  # On disk: most columns that this version writes; a reader accepts any number.
_CELL = struct.Struct(">4sI")  # On disk: a column's key and its digest.
_LOW, _HIGH = 1, 2  # On disk: which bounds are known, in the lowest bits of the digest.
_NO_BOUND = 0xFFFFFFFF  # On disk: replaces the length of an unknown bound.


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What is known about the rows of a batch or of one task."""

    rows: int = 0
    stats: Piece = field(default_factory=dict)


def batch_facts(batch: pa.RecordBatch, columns: Sequence[str]) -> BatchFacts:
    """Return the facts of rows whose schema is in normal form, with statistics of `columns`."""
    return BatchFacts(batch.num_rows, compute(batch, columns))


def gather_facts(parts: Sequence[BatchFacts]) -> BatchFacts:
    """Merge the facts of tasks into those of their batch."""
    if len(parts) == 1 and parts[0].rows:
        return parts[0]
    stats = merge((part.rows, part.stats) for part in parts)
    return BatchFacts(sum(part.rows for part in parts), stats)


def encode_fingerprint(facts: BatchFacts) -> str:
    """Return the text of a fingerprint, as the root stores it; "" without statistics."""
    cells = {_key(label): _digest(bounds, facts.rows) for label, bounds in facts.stats.items()}
    packed = b"".join(_CELL.pack(*cell) for cell in sorted(cells.items())[:COLUMNS_MOST])
    return base64.b64encode(packed).decode()


def decode_fingerprint(text: str, *, where: str) -> dict[bytes, int]:
    """Return the digests of a fingerprint by the keys of their columns."""
    try:
        return dict(_CELL.iter_unpack(base64.b64decode(text, validate=True)))
    except (binascii.Error, ValueError, struct.error) as error:
        raise CorruptionError("not a batch fingerprint", where=where) from error


def differing_columns(fingerprint: str, facts: BatchFacts) -> list[str]:
    """Return the columns in which a batch differs from the batch of a fingerprint.

    Ignores a column that only one batch has, or of which only one knows the lower bound or only one
    knows the upper bound.
    """
    known = decode_fingerprint(fingerprint, where="writers")
    names = []
    for label, stats in facts.stats.items():
        stored, given = known.get(_key(label)), _digest(stats, facts.rows)
        comparable = stored is not None and not (stored ^ given) & (_LOW | _HIGH)
        if comparable and stored != given:
            names.append(label.partition(":")[2])
    return names


@lru_cache(maxsize=4096)
def _key(label: str) -> bytes:
    return blake2b(label.encode("utf-8", "surrogatepass"), digest_size=4).digest()


def _digest(stats: Bounds, rows: int) -> int:
    """Digest null count and bounds into 30 bits; the two lowest bits say which bounds are known."""
    message, known = struct.pack("<Q", stats.nulls), 0
    empty = stats.nulls == rows  # without values, both bounds count as known
    for bit, bound in ((_LOW, stats.min), (_HIGH, stats.max)):
        if bound is None:
            message += struct.pack("<I", _NO_BOUND)
        else:
            data = _bytes_of(bound)
            message += struct.pack("<I", len(data)) + data
        known |= bit if empty or bound is not None else 0
    digest = int.from_bytes(blake2b(message, digest_size=4).digest(), "big")
    return digest & ~(_LOW | _HIGH) | known


def _bytes_of(bound: Bound) -> bytes:
    match bound:
        case bytes():
            return bound
        case str():
            return bound.encode()
        case float():
            return struct.pack("<d", bound)
        case Decimal():
            text = f"{bound:f}"
            text = text.rstrip("0").rstrip(".") if "." in text else text
            return ("0" if text == "-0" else text).encode()
    return str(int(bound)).encode()
