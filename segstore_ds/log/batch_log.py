"""A metadata log for values of the user: what `foreachBatch` and other jobs store per number.

Its files are like those of a stream's log, in a folder that is no stream. Numbers have no gaps, so
a number that is missing below the newest was purged.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from segstore_ds.errors import (
    CommitUnknownError,
    FormatError,
    InvalidInputError,
    MissingObjectError,
)
from segstore_ds.log.metadata_log import Codec, MetadataLog
from segstore_ds.options.arguments import check_duration, check_whole
from segstore_ds.storage import UrlLike, open_storage

MOST_BYTES = 1_000_000

_FOLDER = "batches"


@contextmanager
def _advised() -> Iterator[None]:
    """Let errors name what helps here; the remedies of streams do not."""
    try:
        yield
    except MissingObjectError as error:
        error.advise("leave start or end out to get all that the log has")
        raise
    except FormatError as error:
        error.advise("restore the file from a backup: there is no copy of it")
        raise
    except CommitUnknownError as error:
        error.advise("add the value again")
        raise


class BatchLog:
    """A log of JSON values, one immutable file per number, on any filesystem for streams.

    It does for a job's own metadata what Spark's HDFSMetadataLog does for Spark's. Every call reads
    the storage. Threads and processes may share a log, and it can be pickled.

    Args:
        url: A folder, which need not exist.
        storage_options: As in `open`.
        single_writer: As in `open`.

    Raises:
        UnsafeFilesystemError: The filesystem has no exclusive create.

    Examples:
        >>> log = segstore.BatchLog("batch-log")
        >>> log.add(0, {"rows": 3}), log.add(1, {"rows": 5}), log.add(1, {"rows": 9})
        (True, True, False)
        >>> log.latest(), log.get(0)
        ((1, {'rows': 5}), {'rows': 3})
        >>> log.get_range(start=1), log.purge(1, grace="0s"), log.get(0)
        ([(1, {'rows': 5})], 1, None)
    """

    def __init__(
        self,
        url: UrlLike,
        *,
        storage_options: Mapping[str, Any] | None = None,
        single_writer: bool = False,
    ) -> None:
        storage = open_storage(url, storage_options, single_writer=single_writer)
        self._log = MetadataLog[Any](storage, _FOLDER, Codec(_encode, _decode, MOST_BYTES))

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchLog, (self._log.storage,)

    @_advised()
    def add(self, number: int, value: Any) -> bool:
        """Put a value under the next number; durable and visible to all when it returns.

        A number gets exactly one value, whoever adds it. Safe to repeat: an equal value is a
        success.

        Args:
            number: The newest number plus one, such as Spark's batch id; any in an empty log.
            value: What JSON can hold exactly, up to 1 MB; not None. Keys of objects are texts.

        Returns:
            True if the log holds this value under the number; False if it holds another.

        Raises:
            InvalidInputError: The number was purged or would leave a gap, or the value is no JSON.
            CommitUnknownError: The storage did not say whether the value is there: add it again.
        """
        number = check_whole("number", number)
        near = self._log.numbers(max(number - 1, 0))
        newest = max(near, default=None) if near else self._log.newest_listed()
        if newest is not None and number not in near and number != newest + 1:
            raise InvalidInputError(
                "a number was purged" if number < newest else "a number would leave a gap",
                remedy=f"the next number is {newest + 1}",
                url=self._log.storage.url,
                number=number,
                newest=newest,
            )
        return self._log.add(number, value)

    @_advised()
    def get(self, number: int) -> Any:
        """Return the value of a number; None where there is none.

        Raises:
            FormatError: The file is damaged.
        """
        return self._log.get(check_whole("number", number))

    @_advised()
    def get_range(self, start: int | None = None, end: int | None = None) -> list[tuple[int, Any]]:
        """Return every number of `[start, end)` with its value, in order.

        Args:
            start: The first number; None is the lowest that is kept.
            end: The number after the last; None is all.

        Raises:
            MissingObjectError: One of the numbers is missing.
            FormatError: A file is damaged.
        """
        check_whole("start", start, optional=True)
        check_whole("end", end, optional=True)
        return list(self._log.get_range(start, end))

    @_advised()
    def latest(self) -> tuple[int, Any] | None:
        """Return the newest number and its value; None in an empty log.

        Raises:
            FormatError: The file is damaged; an older value is never returned instead.
        """
        return self._log.latest()

    def purge(self, threshold: int, *, grace: Any = "1h") -> int:
        """Delete the numbers below a threshold, oldest first; the newest stays. Safe to repeat.

        Args:
            threshold: The lowest number to keep.
            grace: A value is deleted only if the next one is that much older than the newest. It
                must be longer than an `add` can take or be suspended, which otherwise could put its
                value under a number that is free again.

        Returns:
            How many were deleted.
        """
        threshold = check_whole("threshold", threshold)
        grace_us = (check_duration("grace", grace) or 0) * 1_000_000
        newest = self._log.newest_listed()
        if newest is None:
            return 0
        newest_us = self._log.storage.info(self._log.path(newest)).modified_us
        return self._log.purge(threshold, superseded_us=newest_us - grace_us)


def _encode(value: Any) -> bytes:
    try:
        body = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True).encode()
        same = value is not None and json.loads(body) == value
    except (TypeError, ValueError, RecursionError) as error:
        raise _not_json(value) from error
    if not same:
        raise _not_json(value)
    if len(body) > MOST_BYTES:
        raise InvalidInputError(
            "a value is too large for a log", remedy=f"at most {MOST_BYTES} bytes", bytes=len(body)
        )
    return body


def _not_json(value: Any) -> InvalidInputError:
    return InvalidInputError(
        "JSON can't hold a value exactly",
        remedy="give texts, finite numbers, true, false, lists, or dicts with texts as keys",
        value=repr(value)[:200],
    )


def _decode(body: bytes, _where: str) -> Any:
    return json.loads(body)
