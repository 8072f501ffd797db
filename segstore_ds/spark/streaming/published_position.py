"""The position that a streaming query publishes under `readerName`, so that retention waits for it.

Spark asks for the next batch only after the previous one is committed, so the query is done with
everything before the offset that Spark then names. Spark asks once more when an `AvailableNow`
query, or one that has reached its `endCut`, finds nothing left; so that position is published too.
A query that ends in another way (`Trigger.Once`, `stop()`, a kill) publishes its last position when
it starts again.

Spark does not tell a source its query's id. The reader's owner is a token of our own that travels
in the offsets of the checkpoint; until Spark has logged it, the registration is provisional.
"""

import logging
from uuid import uuid4

from segstore_ds import NamedReader, Stream
from segstore_ds.errors import CommitUnknownError, StorageError, TruncatedError

_LOG = logging.getLogger(__name__)
_TOKEN_DIGITS = 16


def _new_token() -> str:
    return uuid4().hex[:_TOKEN_DIGITS]


class PublishedPosition:
    """A query's named reader; `fail_on_data_loss` makes a position below the head an error."""

    def __init__(self, stream: Stream, name: str, *, fail_on_data_loss: bool) -> None:
        self._stream = stream
        self._name = name
        self._fail_on_data_loss = fail_on_data_loss
        self._reader: NamedReader | None = None
        self._provisional = True
        self._token = ""

    def hold(self, offset: int, logged: str) -> str:
        """Register at an offset, or publish that the query is done with everything before it.

        `logged` is the token in the offset that Spark passed in, or "". It returns the token that
        the next offset must carry.
        """
        self._token = logged or self._token or _new_token()
        provisional = not logged
        if self._reader is None:
            self._reader = self._register(offset, provisional=provisional)
            self._provisional = provisional
        elif offset > self._reader.offset or self._reader.lapses or provisional < self._provisional:
            self._publish(self._reader, offset, provisional=provisional)
        return self._token

    def take_over(self, offset: int) -> int:
        """Take the name from its owner, and return its position; `offset` if there is no reader."""
        known = self._name in {seen.name for seen in self._stream.readers}
        self._token = _new_token()
        start = None if known else offset
        self._reader = self._register(start, provisional=True, takeover=True)
        return self._reader.offset

    def publish(self, offset: int, logged: str) -> None:
        """Publish what Spark has committed, if this query has registered; raises as `hold`."""
        reader = self._reader
        if reader is not None and logged == self._token and offset > reader.offset:
            self._publish(reader, offset, provisional=False)

    def _publish(self, reader: NamedReader, offset: int, *, provisional: bool) -> None:
        try:
            reader.publish(offset, provisional=provisional)
        except (StorageError, CommitUnknownError) as error:
            # The earlier position keeps more events; the next batch publishes again.
            _LOG.warning("position of reader %r was not published: %s", self._name, error)
        else:
            self._provisional = provisional

    def _register(
        self, offset: int | None, *, provisional: bool, takeover: bool = False
    ) -> NamedReader:
        for _ in range(10):
            try:
                owner = f"query:{self._token}"
                return self._stream.readers.register(
                    self._name,
                    owner=owner,
                    start=offset,
                    takeover=takeover,
                    provisional=provisional,
                )
            except TruncatedError as error:
                if self._fail_on_data_loss:
                    raise
                _LOG.warning("reader %r continues at the head: %s", self._name, error)
                offset = self._stream.head
        raise StorageError("the head moves faster than a reader can register", reader=self._name)
