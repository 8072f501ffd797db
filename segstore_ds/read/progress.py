"""How far streams of a folder were read together, and where their next batch ends.

A position is kept by the stream's name and has the stream's id: a stream that was dropped and
created again is another one. A stream that exists when the reading begins is read from the caller's
cut; one that joins later, from its head.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from segstore_ds.errors import NotFoundError, PositionError
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.read.cuts import (
    CutLike,
    Position,
    check_held,
    check_position,
    check_range,
    resolve_cut,
)
from segstore_ds.read.micro_batch import BatchLimits, bytes_between, plan_batch_end
from segstore_ds.read.together import StreamFolder, parse_common_cut

_LOG = logging.getLogger(__name__)
_MOST_SEGMENTS = 1000  # of a batch; of each stream at least one


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a stream was read, and the offset at which its reading began."""

    position: Position
    origin: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far each stream was read, by its name."""

    streams: Mapping[str, Reached]

    @classmethod
    def parse(cls, value: Any) -> Self:
        """Parse a result of `to_value`.

        Raises:
            PositionError: The value is something else.
        """
        try:
            return cls({name: _reached(**each) for name, each in value["streams"].items()})
        except (TypeError, KeyError, AttributeError) as error:
            raise PositionError(
                "not a position in a folder of streams",
                remedy="it belongs to another query or loop; begin a new one",
                position=value,
            ) from error

    def to_value(self) -> dict[str, Any]:
        """Return the JSON object: equal positions give equal texts."""
        found = {
            name: dict(sorted({**each.position.to_value(), "origin": each.origin}.items()))
            for name, each in sorted(self.streams.items())
        }
        return {"streams": found}

    def to_json(self) -> str:
        """Return the canonical JSON text."""
        return json.dumps(self.to_value(), separators=(",", ":"))

    def spans(self, before: "Progress | None") -> dict[str, tuple[int, int]]:
        """Return the offsets read since an earlier progress, by stream; None is the beginning."""
        found = {}
        for name, each in sorted(self.streams.items()):
            known = None if before is None else before.streams.get(name)
            same = known is not None and known.position.stream_id == each.position.stream_id
            first = known.position.offset if known is not None and same else each.origin
            if first < each.position.offset:
                found[name] = (first, each.position.offset)
        return found


def _reached(
    *,
    stream: str,
    generation: int,
    offset: int,
    origin: int,
    version: int = 0,
    transaction: str = "",
) -> Reached:
    return Reached(Position(stream, generation, offset, version, transaction), origin)


class FolderBatches:
    """Plans the batches of a folder's streams; sends no request before the folder's `look`.

    Attributes:
        folder: The streams.
        target: The id of each stream to read, and the tail at which its reading ends; None to read
            all streams without an end.
    """

    def __init__(
        self,
        folder: StreamFolder,
        start: CutLike,
        *,
        most_rows: int | None = None,
        most_bytes: int | None = None,
        fail_on_data_loss: bool = True,
    ) -> None:
        self.folder = folder
        self.target: Mapping[str, tuple[str, int]] | None = None
        self._cut = parse_common_cut(start)
        self._most_rows, self._most_bytes = most_rows, most_bytes
        self._strict = fail_on_data_loss
        self._checked: set[str] = set()  # ids of streams whose logs hold what was seen
        self._served: dict[str, int] = {}  # by name, the last batch that had events of a stream
        self._number = 0

    def stop_here(self) -> None:
        """End the reading at the current tails."""
        self.folder.look(whole=True)
        streams = self.folder.streams
        self.target = {name: (root.stream_id, root.tail) for name, (_, root) in streams.items()}

    def begin(self) -> Progress:
        """Return where the reading of the existing streams begins."""
        found = {}
        for name, (context, root) in self._joining.items():
            offset = resolve_cut(context, root, self._cut)
            found[name] = Reached(Position.of(root, offset), offset)
        return Progress(found)

    def events(
        self, before: Progress | None, end: Progress
    ) -> tuple[dict[str, tuple[StreamContext, Root]], dict[str, tuple[int, int]]]:
        """Return the streams of an end, and the offsets to read in each; raises as `next`."""
        known = self._known(end)
        spans = {name: span for name, span in end.spans(before).items() if name in known}
        for name in spans:
            self._check_held(known[name][0], end.streams[name].position)
        return known, spans

    def _known(self, before: Progress) -> dict[str, tuple[StreamContext, Root]]:
        """Return the streams that were read so far, without those that are gone."""
        streams = self.folder.streams
        found, gone = {}, []
        for name, each in before.streams.items():
            context, root = streams.get(name, (None, None))
            if context is None or root is None or root.stream_id != each.position.stream_id:
                gone.append(name)
                continue
            check_position(root, each.position)
            found[name] = (context, root)
        if gone and self._strict:
            raise NotFoundError(
                "streams were dropped, or replaced, while they were read",
                remedy="set fail_on_data_loss=False to continue without them",
                streams=gone,
                url=self.folder.url,
            )
        if gone:
            _LOG.warning("the streams %s of %s are gone", ", ".join(gone), self.folder.url)
        return found

    def next(self, before: Progress | None, *, limited: bool = True) -> Progress:
        """Return the end of the next batch, by what `look` has seen; `before` if nothing is new.

        All limits hold at the same time. Each stream with new events gets its share of them. If
        there are more streams than shares, those that have waited longest come first.

        Raises:
            NotFoundError: Streams are gone, and data loss is an error; it names them all.
            PositionError: A stream has another generation, or commits that were seen are gone.
            TruncatedError: The next events are below the head, and data loss is an error.
        """
        begun = self.begin() if before is None else before
        known = self._known(begun)
        found = {name: begun.streams[name] for name in known}
        for name, (_, root) in self._joining.items():
            if name not in found:
                found[name] = Reached(Position.of(root, root.head), root.head)
                known[name] = self.folder.streams[name]
        waiting = {}
        for name, (context, root) in known.items():
            offset, available = found[name].position.offset, self._available(name, root)
            if available <= offset <= root.tail:
                continue
            waiting[name] = check_range(
                root,
                offset,
                max(available, offset),
                fail_on_data_loss=self._strict,
                url=context.storage.url,
            )
            self._check_held(context, found[name].position)
        for name, end in self._ends(known, waiting, limited=limited).items():
            position = Position.of(known[name][1], end)
            found[name] = Reached(position, found[name].origin)
        return Progress(found)

    def _check_held(self, context: StreamContext, position: Position) -> None:
        """Check once for each stream that its log holds what a checkpoint has seen."""
        if position.stream_id not in self._checked:
            check_held(context, position)
            self._checked.add(position.stream_id)

    @property
    def _joining(self) -> dict[str, tuple[StreamContext, Root]]:
        """The streams that the reading may include."""
        joining = self.folder.streams
        if self.target is None:
            return joining
        wanted = {name: stream_id for name, (stream_id, _) in self.target.items()}
        return {n: found for n, found in joining.items() if wanted.get(n) == found[1].stream_id}

    def _available(self, name: str, root: Root) -> int:
        if self.target is None:
            return root.tail
        stream_id, tail = self.target.get(name, ("", 0))
        return min(tail, root.tail) if stream_id == root.stream_id else 0

    def _ends(
        self,
        known: Mapping[str, tuple[StreamContext, Root]],
        waiting: Mapping[str, tuple[int, int]],
        *,
        limited: bool,
    ) -> dict[str, int]:
        """Return the end of the batch in each stream of which it has events."""
        if not limited:
            return {name: end for name, (_, end) in waiting.items()}
        self._number += 1

        def turn(name: str) -> tuple[int, int]:
            return self._served.get(name, 0), waiting[name][1] - waiting[name][0]

        rows, size, ends = self._most_rows, self._most_bytes, {}
        order = sorted(waiting, key=turn)
        for left, name in zip(range(len(order), 0, -1), order, strict=True):
            if rows == 0 or (size is not None and size <= 0):
                break
            (context, root), (start, end) = known[name], waiting[name]
            limits = BatchLimits(
                _share(rows, left), _share(size, left), _share(_MOST_SEGMENTS, len(order))
            )
            segments = context.status.segments(root, start, end)
            ends[name] = plan_batch_end(segments, start, end, limits)
            self._served[name] = self._number
            if rows is not None:
                rows -= ends[name] - start
            if size is not None:
                segments = context.status.segments(root, start, ends[name])
                size -= bytes_between(segments, start, ends[name])
        return ends


def _share(whole: int | None, parts: int) -> int | None:
    return None if whole is None else max(1, whole // parts)
