"""The batch metadata log: one immutable file per batch, put-if-absent, numbered without gaps.

It keeps the contract of Spark's HDFSMetadataLog on any storage with exclusive create:

- `add`, `get`, `purge` by one number; `latest` never skips a batch that can't be read.
- `get_range` returns every batch of a range or fails; `find_gaps` verifies listed numbers.
- There is no `purgeAfter`: what `add` has acknowledged stays, and a repair continues after it.

`add` has three outcomes: won, lost and unknown.

- A slot is lost only if it was *read* and holds another batch. Bytes that fail their digest are
  read again, because a bit that flips in transit must not look like another writer's batch.
- If the storage says for every try that it did not create the file (a full disk), `add` raises
  that error.
- A failure that lasts until an operator acts ends the tries, but does not decide the outcome.
- A timeout, a server error, a refusal without a winner, or "not found" after a put do not decide
  the outcome: the same bytes are put to the same slot again. So a client can neither lose to its
  own retry nor commit twice.

The newest batch is found in O(1) requests: the hint, then one listing of the names from it on. "N+1
is missing" means "N is the newest" only if N, checked afterwards, still exists, because a purge may
have run in between.

Source: Spark's HDFSMetadataLog; icechunk's "conditional put, lost response" for the retry rule.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any, Generic, TypeVar

from segstore_ds.errors import (
    CommitUnknownError,
    CorruptionError,
    FormatError,
    InternalError,
    InvalidInputError,
    MissingObjectError,
    StorageError,
)
from segstore_ds.format import names
from segstore_ds.format.envelope import (
    RAW_LIMIT_BYTES,
    decode_envelope,
    encode_envelope,
    split_envelope,
)
from segstore_ds.log.clock import SYSTEM_CLOCK, Clock
from segstore_ds.storage import Storage

T = TypeVar("T")

ADD_ATTEMPTS = 6
FILE_LIMIT_BYTES = 1 << 20
MARK_BYTES = 80  # first bytes of a batch's file, which have its digest
LISTINGS = 3  # tries of `latest`: the listed batch may be purged before it is read


def _refuse_extra(batch: Any, behind: bytes, where: str) -> Any:
    if behind:
        raise CorruptionError("extra bytes after the body", where=where, bytes=len(behind))
    return batch


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """How a batch is converted to the body of its file and back."""

    encode: Callable[[T], bytes]  # returns the body
    decode: Callable[[bytes, str], T]  # returns the batch; takes the body and the file's name
    limit_bytes: int = RAW_LIMIT_BYTES  # the largest allowed body
    # Encodes and checks only what differs from the last batch: takes the batch, the state that the
    # last call returned, and the file's name; returns the body and the new state. Raises
    # FormatError if readers would reject the batch. None: encode, then decode.
    encode_after: Callable[[T, Any, str], tuple[bytes, Any]] | None = None
    # Returns the bytes of the file behind the body's envelope.
    behind: Callable[[T], bytes] = lambda _: b""
    # Returns the batch with the bytes behind the envelope; takes them and the file's name.
    attach: Callable[[T, bytes, str], T] = _refuse_extra
    # Tells whether the bytes behind the envelope are undamaged: later batches repeat them.
    is_sound: Callable[[T], bool] = lambda _: True

    def encode_file(self, batch: T) -> bytes:
        """Return the file of a batch."""
        return encode_envelope(self.encode(batch)) + self.behind(batch)

    def decode_file(self, data: bytes, where: str) -> T:
        """Return the batch of a file; raises FormatError as `decode_envelope` does."""
        envelope, behind = split_envelope(data)
        body = decode_envelope(envelope, where=where, raw_limit_bytes=self.limit_bytes)
        return self.attach(self.decode(body, where), behind, where)


def find_gaps(numbers: Iterable[int], first: int, end: int) -> list[range]:
    """Return the runs of `[first, end)` that a log lacks, in order.

    >>> find_gaps([1, 2, 5, 9], 0, 8)
    [range(0, 1), range(3, 5), range(6, 8)]
    """
    there = sorted({number for number in numbers if first <= number < end})
    borders = pairwise((first - 1, *there, end))
    return [range(low + 1, high) for low, high in borders if high > low + 1]


class MetadataLog(Generic[T]):
    """A folder of numbered batches."""

    def __init__(
        self,
        storage: Storage,
        folder: str,
        codec: Codec[T],
        *,
        clock: Clock = SYSTEM_CLOCK,
        hint_path: str = "",
    ) -> None:
        self.storage = storage
        self.folder = folder
        self.hint_path = hint_path or f"{folder}/_latest"
        self._codec = codec
        self._clock = clock
        self._added: tuple[int, bytes] | None = None  # number and file of the batch added last
        self._encoded: Any = None  # state of `encode_after`

    def at(self, storage: Storage) -> "MetadataLog[T]":
        """Return the log of the same kind in another storage."""
        return MetadataLog(storage, self.folder, self._codec, clock=self._clock)

    def add(self, number: int, batch: T) -> bool:
        """Put a batch if its number is free; True if the log holds it. See `add_or_read`."""
        return self.add_or_read(number, batch) is None

    def holds_added(self, number: int) -> bool:
        """Tell whether a batch exists and, if it is the one added last, is unchanged."""
        added = self._added  # read once: another thread may add the next one
        if added is None or added[0] != number:
            return self.exists(number)
        return self.read(number) == added[1]

    @property
    def added_mark(self) -> bytes:
        """The first bytes of the file added last; b"" if there is none."""
        return self._added[1][:MARK_BYTES] if self._added else b""

    def add_or_read(self, number: int, batch: T) -> bytes | None:
        """Put a batch if its number is free, or return the other file that has the number.

        Two callers that add exactly the same bytes both win, because the storage can't tell them
        apart.

        Returns:
            None if the log holds our batch under that number, else the file that it holds.

        Raises:
            CommitUnknownError: No answer of the storage decided the outcome.
            StorageError: Every try failed before it created the file; nothing was put.
            InternalError: The batch is larger than readers accept; nothing was put.
            InvalidInputError: Readers would reject the batch; nothing was put.
        """
        path = self.path(number)
        body = self._encode(batch, path)
        data = encode_envelope(body) + self._codec.behind(batch)
        if len(body) > self._codec.limit_bytes or len(data) > FILE_LIMIT_BYTES:
            # A batch that no reader accepts would end the stream.
            raise InternalError("batch is too large for its log", path=path, bytes=len(body))
        cause: StorageError | None = None
        failed: StorageError | None = None  # the last try's, raised if no try can have put the file
        doubtful = lasting = unsynced = False
        before: bytes | None = None
        for attempt in range(1, ADD_ATTEMPTS + 1):
            try:
                if self.storage.create(path, data):
                    self._added = number, data
                    return None
                doubtful, unsynced = True, False
            except StorageError as error:
                cause = failed = error
                doubtful = doubtful or not error.untouched
                lasting, unsynced = not error.retryable, error.unsynced
            try:
                found = self._read(path)
            except StorageError as error:
                found, cause = None, error
            if found == data and not unsynced:  # otherwise the next try syncs it
                self._added = number, data
                return None
            if found is not None and self._is_other(found, data, before, path):
                return found
            before = found
            if lasting:
                break  # another try would fail too; `doubtful` decides which error is raised
            self._clock.backoff(attempt, base_s=0.02, most_s=2.0)
        if failed is not None and not doubtful:
            raise failed
        details = {} if cause is None else {"cause": str(cause)}
        raise CommitUnknownError(
            "the storage did not say whether the batch is in the log",
            url=self.storage.url,
            path=path,
            version=number,
            **details,
        ) from cause

    def _is_other(self, found: bytes, data: bytes, before: bytes | None, path: str) -> bool:
        """Tell whether a file is certainly not our batch; `before` is what was read before.

        A file with our mark is ours, even if the bytes behind its body are wrong.
        """
        if found[:MARK_BYTES] == data[:MARK_BYTES]:
            return False
        if found == before:
            return True
        try:
            decode_envelope(split_envelope(found)[0], where=path)
        except FormatError:
            return False
        return True

    def purge(self, threshold: int, *, superseded_us: int | None = None) -> int:
        """Delete the batches below `threshold`, oldest first; return how many. Safe to repeat.

        With `superseded_us` a batch stays if the next one was put after that time.
        """
        if superseded_us is None:
            numbers = [number for number in self.numbers() if number < threshold]
        else:
            numbers = self.superseded(threshold, superseded_us)
        for number in numbers:
            self.storage.delete(self.path(number))
        return len(numbers)

    def superseded(self, threshold: int, before_us: int) -> list[int]:
        """Return the lowest numbers below `threshold` whose next batch was put by a time."""
        names_of = (
            (names.parse_log_name(info.path.rpartition("/")[2]), info.modified_us)
            for info in self.storage.list(self.folder)
        )
        dated = sorted((number, put_us) for number, put_us in names_of if number is not None)
        following = pairwise(dated)
        old = takewhile(lambda pair: pair[1][1] <= before_us, following)
        return [number for (number, _), _ in old if number < threshold]

    def trim(self, low: int, threshold: int, *, until: Callable[[], bool]) -> None:
        """Delete the batches from `low` to `threshold`, oldest first, without listing.

        It stops when `until` returns True; the next call starts at `lowest`.
        """
        for number in range(low, threshold):
            if until():
                return
            self.storage.delete(self.path(number))

    def lowest(self, end: int) -> int:
        """Return where the run of batches that ends before `end` begins; `end` if there is none."""
        low, step = end, 1
        while low - step >= 0 and self.exists(low - step):
            low -= step
            step *= 2
        gap = max(low - step, -1)
        while low - gap > 1:
            middle = (gap + low) // 2
            low, gap = (middle, gap) if self.exists(middle) else (low, middle)
        return low

    def write_hint(self, hint: names.Hint) -> None:
        """Record where the newest batch is; ignore a failure."""
        try:
            self.put_hint(hint)
        except StorageError:
            return

    def put_hint(self, hint: names.Hint) -> None:
        """Record where the newest batch is; raise a failure."""
        self.storage.note(self.hint_path, names.build_hint(hint))

    def path(self, number: int) -> str:
        """Return the file of a batch."""
        return f"{self.folder}/{names.build_log_name(number)}"

    def get(self, number: int) -> T | None:
        """Return a batch, or None if there is none; FormatError if the file can't be read."""
        data = self.read(number)
        return None if data is None else self.decode(number, data)

    def get_range(self, first: int | None, end: int | None) -> Iterator[tuple[int, T]]:
        """Yield every number of `[first, end)` with its batch, in order.

        `first` of None is the lowest number, `end` of None is after the newest. Raises
        MissingObjectError if a number is missing, and FormatError as `get` does.
        """
        if first is None or end is None:
            listed = self.numbers(first or 0)
            first = first if first is not None else min(listed, default=0)
            end = end if end is not None else max(listed, default=-1) + 1
        for number in range(first, end):
            batch = self.get(number)
            if batch is None:
                raise self._missing(number)
            yield number, batch

    def latest(self) -> tuple[int, T] | None:
        """Return the newest number by listing, and its batch; None for an empty log."""
        number = -1
        for _ in range(LISTINGS):
            newest = self.newest_listed()
            if newest is None:
                return None
            number = newest
            batch = self.get(number)
            if batch is not None:
                return number, batch
        raise self._missing(number)

    def read(self, number: int) -> bytes | None:
        """Return the stored file of a batch, or None if there is none."""
        return self._read(self.path(number))

    def read_sound(self, number: int) -> tuple[T, bytes]:
        """Return a batch and its file after a check of every byte; a damaged one is read twice.

        Raises MissingObjectError if there is none, and FormatError as `get` does.
        """
        path = self.path(number)
        for last in (False, True):
            data = self._read(path)
            if data is None:
                break
            with nullcontext() if last else suppress(FormatError):
                batch = self._decode(data, path)
                if self._codec.is_sound(batch):
                    return batch, data
                raise CorruptionError(
                    "bytes behind the body fail their checksums", where=f"{self.storage.url}/{path}"
                )
        raise self._missing(number)

    def is_sound(self, batch: T) -> bool:
        """Tell whether the bytes behind a batch's body are undamaged."""
        return self._codec.is_sound(batch)

    def decode(self, number: int, data: bytes) -> T:
        """Return the batch of a file; raises FormatError as `get` does.

        If bytes behind the body are wrong, the file is read again: a bit that flipped in transit
        must not get into later batches. If the stored file is damaged, it is used as it is.
        """
        path = self.path(number)
        batch = self._decode(data, path)
        if self._codec.is_sound(batch) or (again := self._read(path)) in (None, data):
            return batch
        found = self._decode(again, path)
        return found if self._codec.is_sound(found) else batch

    def newest_listed(self) -> int | None:
        """Return the newest number by listing; None in an empty log."""
        numbers = self.numbers()
        return numbers[-1] if numbers else None

    def numbers(self, start: int = 0) -> list[int]:
        """Return all numbers from `start` on by listing, ascending; ignore other files."""
        found = self.storage.names_from(self.folder, names.build_log_name(start))
        return names.parse_log_names(found)

    def exists(self, number: int) -> bool:
        """Tell whether a batch exists, without opening it."""
        return self.storage.exists(self.path(number))

    def read_hint(self) -> names.Hint | None:
        """Return the hint; None if it is missing or can't be read."""
        try:
            content = self.storage.find(self.hint_path, limit_bytes=256)
        except (CorruptionError, StorageError):
            return None
        return None if content is None else names.parse_hint(content)

    def _missing(self, number: int) -> MissingObjectError:
        return MissingObjectError(
            "batch is missing in its log",
            url=self.storage.url,
            path=self.path(number),
            version=number,
        )

    def _encode(self, batch: T, path: str) -> bytes:
        # Earlier checks may have missed a value that can be encoded, but that readers reject.
        codec = self._codec
        try:
            if codec.encode_after is not None:
                body, self._encoded = codec.encode_after(batch, self._encoded, path)
            else:
                body = codec.encode(batch)
                codec.decode(body, path)
        except FormatError as error:
            codec.encode(batch)  # has its own error for a batch that can't be encoded
            raise InvalidInputError(
                "a commit could not be read back",
                remedy="give each argument the type and the range that the reference states",
                url=self.storage.url,
                why=str(error),
            ) from error
        return body

    def _read(self, path: str) -> bytes | None:
        return self.storage.find(path, limit_bytes=FILE_LIMIT_BYTES)

    def _decode(self, data: bytes, path: str) -> T:
        return self._codec.decode_file(data, f"{self.storage.url}/{path}")
