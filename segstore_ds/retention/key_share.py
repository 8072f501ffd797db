"""Plans how members share a reader by key: each holds some buckets of keys. Pure.

All events of a key are in one bucket. Only the bucket's holder reads them, from the bucket's
position on: below it all are done. A record moves a bucket to another holder, with its position. So
the events of a key are given out in order. While a delivery is pending, no later events of its
buckets are given out, until it is done or written to the dead letters.

Each member reads all committed events and filters out those in the buckets of others.

If the values of a key change, by a redaction or because its column is another one now, its events
are in other buckets than before, which may be done up to a later offset. So all buckets begin again
at the lowest position, and nobody commits what was read by the values of before.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Self
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types as t

from segstore_ds.errors import InvalidInputError, ReaderConflictError
from segstore_ds.format.bloom import has_filter
from segstore_ds.format.reader_record import NO_END, Delivery, KeyShare, ReaderRecord
from segstore_ds.format.redactions import expiry_of, redactions_of
from segstore_ds.format.root import Root

BUCKETS = 64  # of a new share; with more members than buckets, some have nothing to read
_MIX = np.uint32(0x9E3779B1)


def check_key(schema: pa.Schema, key: list[str]) -> None:
    """Raise InvalidInputError unless these columns of a stream can be the key."""
    types = dict(zip(schema.names, schema.types, strict=True))
    missing = [name for name in key if name not in types]
    wrong = [name for name in key if name in types and not has_filter(types[name])]
    if not key or missing or wrong:
        raise InvalidInputError(
            "these columns can't be the key of a shared reader",
            remedy="name columns of the stream that are neither floats nor nested",
            key=key,
            missing=missing,
            wrong=wrong,
        )


def bucket_of(batch: pa.RecordBatch, key: list[str], buckets: int) -> npt.NDArray[np.uint32]:
    """Return the bucket of each event, from the texts of its key's values (see `_text_of`).

    >>> batch = pa.record_batch({"user": ["ada", "bob", "ada", None]})
    >>> bucket_of(batch, ["user"], 64).tolist()
    [40, 0, 40, 49]
    """
    mixed = np.zeros(batch.num_rows, np.uint32)
    for name in key:
        column = batch.column(name)
        if t.is_temporal(column.type):  # Python can't hold all times
            column = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
        column = column.dictionary_encode(null_encoding="encode")
        hashes = [crc32(_text_of(value).encode()) for value in column.dictionary.to_pylist()]
        mixed = (
            mixed * _MIX
            + np.array(hashes, np.uint32)[column.indices.to_numpy(zero_copy_only=False)]
        )
    return mixed % np.uint32(buckets)


def _text_of(value: Any) -> str:
    """Return a value's text, which stays the same if its column's type is widened."""
    if isinstance(value, Decimal):
        text = f"{value:f}"  # unlike `normalize`, it does not round to the caller's precision
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value + 0.0:.0f}" if isinstance(value, float) else str(value)  # it was an integer


@dataclass(frozen=True, slots=True)
class KeyBasis:
    """What the buckets of a key go by: stored columns, and the last redaction of their values."""

    columns: tuple[str, ...] = ()
    since: int = 0

    @classmethod
    def of(cls, share: KeyShare | None) -> Self:
        """Return the basis of a share."""
        return cls() if share is None else cls((*share.columns,), share.since or 0)


def basis_of(root: Root, key: Sequence[str]) -> KeyBasis:
    """Return the basis of a key, by the names that its columns have in a root.

    The record of a redaction does not say which columns it was of; a rule of expiry does.
    """
    stored = {called: name for name, called in root.epoch.names.items() if called is not None}
    columns = tuple([stored.get(name, name) for name in key])
    if not key or not root.redactions:
        return KeyBasis(columns)
    others = {rule.redact_id for rule in expiry_of(root) if rule.column not in columns}
    known = [each.version for name, each in redactions_of(root).items() if name not in others]
    return KeyBasis(columns, max(known, default=0))


def rebased(record: ReaderRecord, basis: KeyBasis) -> ReaderRecord:
    """Return a record whose buckets begin again at its offset, by another basis."""
    share = record.by_key
    if share is None:
        return record
    positions = [record.offset] * len(share.positions)
    share = KeyShare([*basis.columns], positions, share.holders, basis.since or None)
    return replace(record, by_key=share, done=[], deliveries=[])


def shared_by(record: ReaderRecord, basis: KeyBasis, *, name: str) -> ReaderRecord:
    """Return a record whose members share by a key, or by ranges if it has no columns.

    Buckets of former members become free. A change of the key starts again at the record's offset,
    and forgets what is done or pending beyond it: those events are given out again.

    Raises:
        ReaderConflictError: Living members share it by another key.
    """
    share, key = record.by_key, [*basis.columns]
    known = [] if share is None else share.columns
    if known == key:
        return record if share is None else replace(record, by_key=freed(share, record.members))
    if record.members:
        raise ReaderConflictError(
            "members share this reader by another key",
            remedy="give all members the same key, or stop the running ones first",
            reader=name,
            key=key,
            theirs=known,
        )
    by_key = None
    if key:
        by_key = KeyShare(key, [record.offset] * BUCKETS, [""] * BUCKETS, basis.since or None)
    return replace(record, by_key=by_key, done=[], deliveries=[])


@dataclass(frozen=True, slots=True)
class Turn:
    """What a member reads next: of `buckets` one delivery, or the events that are in none."""

    buckets: frozenset[int] = frozenset()
    start: int = 0
    end: int = 0
    delivery: Delivery | None = None


def turn_of(
    record: ReaderRecord, share: KeyShare, member: str, barred: Collection[int], *, new_to: int = 0
) -> Turn:
    """Return what a member reads next.

    A delivery comes before new events, unless its `mark` is `barred` or there are new events below
    `new_to`. A letter is read whole, whoever holds its buckets.

    >>> from segstore_ds.format.reader_record import Delivery, Lease
    >>> share = KeyShare(["user"], [0, 0, 4, 4], ["a", "a", "a", "b"])
    >>> lost = [Delivery(0, 9, 1, "c", buckets=[1, 3])]
    >>> record = ReaderRecord("s", 0, 0, "", 60, by_key=share, deliveries=lost)
    >>> sorted(turn_of(record, share, "a", []).buckets)
    [1]
    >>> turn = turn_of(record, share, "a", [], new_to=9)
    >>> sorted(turn.buckets), turn.start
    ([0, 2], 0)
    """
    held = {bucket for bucket, holder in enumerate(share.holders) if holder == member}
    new = held.difference(*(each.buckets for each in record.deliveries))
    start = min((share.positions[bucket] for bucket in new), default=NO_END)
    if start >= new_to:
        for each in sorted(record.deliveries, key=lambda each: (each.since or 0, each.start)):
            own = {*each.buckets} if each.letter is not None else held & {*each.buckets}
            if own and each.mark not in barred:
                begins = min(share.positions[bucket] for bucket in own)  # the head may be there
                start = min(max(each.start, begins), each.end)
                delivery = replace(each, start=start, buckets=sorted(own))
                return Turn(frozenset(own), start, each.end, delivery)
    if not new:
        return Turn(frozenset(), record.offset, record.offset)
    return Turn(frozenset(new), start, NO_END)


def bucket_starts(share: KeyShare, buckets: Collection[int]) -> npt.NDArray[np.int64]:
    """Return the offset from which each bucket is read, by bucket; `NO_END` for other buckets."""
    starts = np.full(len(share.positions), NO_END, np.int64)
    for bucket in buckets:
        starts[bucket] = share.positions[bucket]
    return starts


def most_buckets(record: ReaderRecord) -> int:
    """Return how many buckets a member may hold at most."""
    share = record.by_key
    return 0 if share is None else -(-len(share.holders) // max(len(record.members), 1))


def done_by_key(
    record: ReaderRecord, share: KeyShare, buckets: Collection[int], done: int
) -> ReaderRecord:
    """Return a record in which the events of some buckets are done up to an offset."""
    positions = [
        max(at, done) if bucket in buckets else at for bucket, at in enumerate(share.positions)
    ]
    return replace(
        record,
        offset=max(record.offset, min(positions)),
        by_key=replace(share, positions=positions),
        deliveries=without(record.deliveries, buckets, done),
    )


def without(deliveries: list[Delivery], buckets: Collection[int], done: int) -> list[Delivery]:
    """Return the deliveries, without some buckets in those that end at or below an offset.

    >>> [each.buckets for each in without([Delivery(0, 9, 1, "a", buckets=[1, 2])], [2], 9)]
    [[1]]
    """
    left = [
        replace(each, buckets=[*filter(lambda one: one not in buckets, each.buckets)])
        if each.end <= done
        else each
        for each in deliveries
    ]
    return [each for each in left if each.buckets]


def advanced_by_key(
    record: ReaderRecord, share: KeyShare, member: str, number: int, *, moves: bool
) -> ReaderRecord:
    """Renew a member's lease; with `moves` it also gives up surplus buckets and takes free ones.

    >>> from segstore_ds.format.reader_record import Lease
    >>> share = KeyShare(["user"], [3, 3, 4, 4], ["a", "a", "a", ""])
    >>> pair = {"a": Lease(0, NO_END, "t", 30, 0), "b": Lease(0, 0, "u", 30, 0)}
    >>> record = ReaderRecord("s", 0, 0, "", 60, members=pair, by_key=share)
    >>> advanced_by_key(record, share, "a", 1, moves=True).by_key.holders
    ['a', 'a', '', '']
    """
    holders = [*share.holders]
    held = [bucket for bucket, holder in enumerate(holders) if holder == member]
    if moves:
        most = most_buckets(record)
        for bucket in held[most:]:
            holders[bucket] = ""
        free = [bucket for bucket, holder in enumerate(holders) if not holder]
        for bucket in free[: max(most - len(held), 0)]:
            holders[bucket] = member
    own = [at for at, holder in zip(share.positions, holders, strict=True) if holder == member]
    span = (min(own), NO_END) if own else (record.offset, record.offset)
    lease = replace(record.members[member], start=span[0], end=span[1], renewed=number)
    return replace(
        record, members={**record.members, member: lease}, by_key=replace(share, holders=holders)
    )


def freed(share: KeyShare, members: Collection[str]) -> KeyShare:
    """Return a share in which only these members hold buckets."""
    return replace(share, holders=[each if each in members else "" for each in share.holders])
