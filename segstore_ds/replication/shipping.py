"""Shipping: followers receive every buffer of a staged segment while the segment is written.

The write cache sends a buffer to the channels of the primary and of every follower at the same
time. A follower's channel rebuilds the record map from the bytes, checks every record, and takes a
buffer only where the previous one ended, so it commits the object byte for byte, or nothing. The
commit then need not read the segments again. It ships those that a follower did not get whole, and
fails if it can't.

A follower may hold a whole object that the primary failed to write. No commit names it, and upkeep
deletes it.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from segstore_ds.cache.buffer import Buffer
from segstore_ds.cache.channel import FlushedBuffer
from segstore_ds.errors import CorruptionError, FormatError, InvalidInputError, StorageError
from segstore_ds.format import names
from segstore_ds.format.root import Root
from segstore_ds.log.metadata_log import MetadataLog
from segstore_ds.log.newest import ROOT_CODEC
from segstore_ds.replication.follower import replication_of
from segstore_ds.storage import StagedWriter, Storage

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FollowerMirrors:
    """Followers that receive staged objects, or are read for objects damaged here; picklable."""

    stream_id: str
    version: int
    primary: str
    urls: tuple[str, ...]

    def leaving(self, url: str) -> str:
        """Return the call that continues without a follower."""
        return f"followers.remove({url!r})"

    def open(self, storage: Storage, path: str) -> Sequence["FollowerChannel"]:
        """Begin an object in each follower, with the storage options of the stream's folder."""
        channels = []
        for url in self.urls:
            try:
                channels.append(FollowerChannel(storage.sibling(url), path))
            except InvalidInputError as error:
                _LOG.warning("follower %s can't be opened here: %s", url, error)
        return channels

    def folders(self, storage: Storage) -> Iterator[Storage]:
        """Yield the other folders of the stream that name this one and themselves, primary first.

        Each is read when its turn comes; one that can't be read is left out.
        """
        for url in dict.fromkeys((self.primary, *self.urls)):
            if url == storage.url:
                continue
            files = MetadataLog(storage.sibling(url), names.LOG_FOLDER, ROOT_CODEC)
            try:
                if self._agrees(files, storage.url):
                    yield files.storage
                else:
                    _LOG.warning("%s is not marked as a copy of this folder", url)
            except (FormatError, StorageError) as error:
                _LOG.warning("%s can't be read: %s", url, error)

    def _agrees(self, files: MetadataLog[Root], url: str) -> bool:
        """Tell whether a log names its folder and this one; one request, or a few more."""

        def confirms(theirs: Root | None) -> bool:
            known = None if theirs is None else replication_of(theirs)
            if theirs is None or known is None or theirs.stream_id != self.stream_id:
                return False
            return {url, files.storage.url} <= {known.primary, *known.followers}

        return confirms(files.get(self.version)) or confirms((files.latest() or (0, None))[1])


class FollowerChannel:
    """Takes one object into a follower's folder, buffer by buffer."""

    def __init__(self, storage: Storage, path: str) -> None:
        self.url = storage.url
        self._storage, self._path = storage, path
        self._writer: StagedWriter | None = None
        self._sequence = self._size = 0

    def receive(self, buffer: FlushedBuffer) -> None:
        """Write the next buffer, if it follows the previous one and holds no damaged record."""
        expected, received = (self._sequence, self._size), (buffer.sequence, buffer.start)
        if received != expected:
            raise CorruptionError(
                "a follower received a buffer out of order",
                follower=self.url,
                path=self._path,
                expected=expected,
                received=received,
            )
        checked = Buffer.received(buffer.start, buffer.records, buffer.payload)
        if self._writer is None:
            self._writer = self._storage.open_staged(self._path)
        self._writer.write_all(list(buffer.payload.buffers()))
        self._sequence += 1
        self._size += checked.filled

    def commit(self, size: int) -> None:
        """Make the object durable, or raise CorruptionError if its size is not the primary's."""
        if self._writer is None or self._size != size:
            raise CorruptionError(
                "a follower did not receive the whole object",
                follower=self.url,
                path=self._path,
                expected_bytes=size,
                received_bytes=self._size,
            )
        self._writer.commit()

    def abort(self) -> None:
        """Discard the object; never raises, safe to repeat."""
        if self._writer is not None:
            self._writer.abort()
