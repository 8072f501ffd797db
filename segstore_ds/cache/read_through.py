"""Reads records back that no buffer holds any more: one load for all askers, verified."""

import zlib
from collections.abc import Callable

from segstore_ds.cache.record import Record
from segstore_ds.cache.single_flight import SingleFlight
from segstore_ds.errors import CorruptionError

Loader = Callable[[int, int], bytes]


class ReadThrough:
    """Reads recycled records with `load`, which takes `[start, end)`; calls `loading` before."""

    def __init__(self, load: Loader, loading: Callable[[], None]) -> None:
        self._loader = load
        self._loading = loading
        self._flights = SingleFlight(self._load)

    def get(self, record: Record) -> bytes:
        """Read a record, or wait for the thread that is reading it.

        Raises:
            CorruptionError: The bytes fail their checksum.
        """
        return self._flights.get(record)

    def _load(self, record: Record) -> bytes:
        self._loading()
        return verified(self._loader(record.offset, record.end), record)


def verified(data: bytes, record: Record) -> bytes:
    """Return a record's bytes, or raise CorruptionError if length or checksum differ."""
    actual = zlib.crc32(data)
    if len(data) != record.length or actual != record.crc:
        raise CorruptionError(
            "a record fails its checksum",
            offset=record.offset,
            length=record.length,
            expected=record.crc,
            actual=actual,
            actual_length=len(data),
        )
    return data
