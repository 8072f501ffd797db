"""The stream of a reader's dead letters: events that its members rejected, or never completed.

The letters of a reader are numbered, and written one after the other. Each has a token of its own,
since a reader that is registered again, in a promoted or restored stream, counts from the start.
So a letter that is written again, by a member that was presumed dead, for example, changes nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.reader_record import REASON_LIMIT, Delivery
from segstore_ds.format.record import escape_text
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.options.arguments import check_whole
from segstore_ds.read.cuts import Position
from segstore_ds.read.plan import whole_reading
from segstore_ds.read.request import plan_reading
from segstore_ds.read.scan import open_reader
from segstore_ds.storage import UrlLike
from segstore_ds.stream.commits import Commits
from segstore_ds.write.inputs import as_input
from segstore_ds.write.letters import as_letters, letters_key, open_letters, send_letters
from segstore_ds.write.request import WriteRequest

_OFFSET = "_offset"
_SHOWN = 5  # rows in the text of an error
_ROWS_FEW = 100
_ROWS_LIMIT = 1_000  # rejected rows of one batch, whose offsets have to fit into a record


class DeadLetters:
    """Writes the events that the members of a reader give up, with the reason."""

    def __init__(
        self, context: StreamContext, url: UrlLike, reader: str, how: Mapping[str, Any]
    ) -> None:
        self._context, self._reader = context, reader
        self._how = {
            "filters": how["filters"],
            "event_time": how["event_time"],
            "offset_column": _OFFSET,
        }
        root = context.log.root
        columns = plan_reading(context, root, root.tail, root.tail, filters=how["filters"]).schema
        self._target = open_letters(context, url, columns)
        self._commits = Commits(self._target)

    def write(
        self,
        letter: Delivery,
        seen: Root,
        root: Root,
        pick: Callable[[pa.RecordBatch, str], npt.NDArray[np.bool_]],
        is_owed: Callable[[], bool],
    ) -> None:
        """Append the events of a letter as of a root, once; the reader has read the root `seen`.

        If the letter is for buckets of keys, `pick` tells which events are in these. `is_owed`
        tells whether the reader's record still has the letter.
        """
        context, start = self._context, Position.of(seen, letter.start)
        # Rejected rows are known by their offsets, whatever they hold now.
        how = {"offset_column": _OFFSET} if letter.rows else self._how
        reading = plan_reading(context, root, start, letter.end, **how)
        events = open_reader(reading, whole_reading(context, reading, root=root)).read_all()
        if letter.buckets and not letter.rows:
            batches = [
                batch.filter(pa.array(pick(batch, _OFFSET))) for batch in events.to_batches()
            ]
            events = pa.Table.from_batches(batches, events.schema)
        if letter.rows:
            offsets, kept = events.column(_OFFSET).to_pylist(), {*letter.rows}
            events = events.take([row for row, offset in enumerate(offsets) if offset in kept])
        details = {
            "_deliveries": letter.count,
            "_reason": letter.reason,
            "_member": letter.member,
            "_reader": self._reader,
            "_stream": context.storage.url,
        }
        name = f"{root.stream_id}/readers/{self._reader}"
        key = letters_key(name, letter.letter or 0, letter.token or "")

        def write(_target: StreamContext, request: WriteRequest, letters: pa.Table) -> None:
            self._commits.write(request, as_input(letters))

        send_letters(
            self._target, as_letters(events, details), lambda: key if is_owed() else None, write
        )


def check_reason(reason: str) -> str:
    """Return a reason as it is stored: valid text of limited length."""
    if not isinstance(reason, str):
        raise InvalidInputError("reason is not a text", remedy="say why the events are rejected")
    return str(escape_text(reason))[:REASON_LIMIT]


def check_rows(rows: Sequence[int] | None, offsets: pa.Array | None, span: range) -> list[int]:
    """Return the offsets of some rows of a batch, whose `offsets` are those of `span` if None.

    If `rows` is None, all of them are meant, and the list is empty: of the span, or what is found
    in it again by filters and keys. Of a few, which these may not find if values change, it has the
    offsets.
    """
    if rows is None:
        return [] if offsets is None or len(offsets) > _ROWS_FEW else offsets.to_pylist()
    count = len(span) if offsets is None else len(offsets)
    picked = sorted({check_whole("rows", row) for row in rows})
    if not 0 < len(picked) <= _ROWS_LIMIT or picked[-1] >= count:
        raise InvalidInputError(
            f"not from 1 to {_ROWS_LIMIT} rows of the batch",
            remedy="count them from 0; reject the whole batch, or follow with a smaller max_rows, "
            "if they are too many",
            rows=picked[-_SHOWN:],
            batch=count,
        )
    return [span[row] if offsets is None else offsets[row].as_py() for row in picked]
