"""What a copy by events has staged in its destination: a plan, and pieces (FORMAT.md 4.8).

The first run creates the plan, which fixes the range, and every run uses the stored one. A piece is
a part of the range whose segments are durable. Its object names them and is created after them,
exclusively, so all runs and attempts agree on a piece's segments. A run that resumes lists the
pieces and stages the gaps between them. The root lists the pieces that tile the range and have one
`made_by`; a piece whose segments are gone is deleted and staged again.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from segstore_ds.errors import CorruptionError, MissingObjectError, StorageError
from segstore_ds.format import names
from segstore_ds.format.envelope import decode_envelope, encode_envelope
from segstore_ds.format.record import ABSENT, Positive, build_json, from_json, parse_json, to_json
from segstore_ds.format.root import SegmentEntry
from segstore_ds.storage import ObjectInfo, Storage
from segstore_ds.write.staged import delete_staged

_LOG = logging.getLogger(__name__)
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What the first run of a copy by events fixed."""

    source: str  # id of the stream that is copied
    generation: int  # of the source
    version: int  # of the source when the copy began
    start: int  # first offset of the source that is copied
    end: int  # the offset after the last one
    digest: str  # `CopyRequest.digest`
    piece_rows: Positive  # events per piece
    schema: str | None = None  # text of the events' schema; None if a job makes rows of them
    spark_schema: str | None = None  # Spark's JSON of the schema, if the source has one
    # As in an epoch.
    names: Annotated[Mapping[str, str | None], ABSENT] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StagedPiece:
    """The segments that hold the events ``[start, end)`` of the source, or the rows made of them.

    `made_by` is 12 hex digits that stand for the schema or the transformation.
    """

    start: int
    end: int
    made_by: str
    segments: tuple[SegmentEntry, ...]


def open_plan(target: Storage, copy_id: str, propose: Callable[[], CopyPlan]) -> CopyPlan | None:
    """Return the plan of a copy, the proposed one if it has none; None if the copy is finished."""
    path = names.build_copy_plan(copy_id)
    found = _read_plan(target, path)
    if found is None:
        # Read it back: another run may have been first, or the answer was lost.
        target.create(path, encode_envelope(build_json(to_json(propose()))))
        found = _read_plan(target, path)
    return found


def _read_plan(target: Storage, path: str) -> CopyPlan | None:
    data = target.find(path)
    if data is None:
        return None
    where = target.describe(path)
    value = parse_json(decode_envelope(data, where=where), where=where)
    return from_json(CopyPlan, value, where=where)


def put_piece(target: Storage, copy_id: str, piece: StagedPiece) -> bool:
    """Record that a piece is staged; if another attempt was first, delete the segments: False.

    Raises:
        StorageError: The piece may or may not be recorded; the next run finds out.
    """
    path = names.build_piece(copy_id, piece.start, piece.end, piece.made_by)
    data = encode_envelope(build_json(to_json(piece)))
    # The name may be taken because the answer to our own first try was lost.
    if target.create(path, data) or target.get(path) == data:
        return True
    delete_staged(target, piece.segments)
    return False


def find_gaps(
    target: Storage, copy_id: str, made_by: str, bounds: Range, *, most: int
) -> list[Range]:
    """Return the ranges that no piece covers, in order, cut to at most `most` events."""
    found = _pieces((info.path for info in _objects(target, copy_id)), made_by)
    return [
        (at, min(at + most, end))
        for start, end, is_staged in _tile(found, bounds)
        if not is_staged
        for at in range(start, end, most)
    ]


def read_pieces(
    target: Storage, copy_id: str, made_by: str, bounds: Range
) -> Iterator[StagedPiece]:
    """Yield the pieces that tile a range, after a check that their segments exist.

    Raises:
        MissingObjectError: A piece can't be seen from here, or a segment is gone: the next run
            stages it again.
        CorruptionError: A piece's object is damaged, or names objects outside this copy.
    """
    folder = f"{names.build_copy_token(copy_id)}/"
    sizes = {info.path: info.size for info in _objects(target, copy_id)}
    for start, end, is_staged in _tile(_pieces(sizes, made_by), bounds):
        path = names.build_piece(copy_id, start, end, made_by)
        where = target.describe(path)
        if not is_staged:
            raise MissingObjectError(
                "staged events are not visible",
                remedy="use storage that all nodes share, and copy again",
                url=target.url,
                missing=f"[{start}, {end})",
            )
        value = parse_json(decode_envelope(target.get(path), where=where), where=where)
        piece = from_json(StagedPiece, value, where=where)
        for segment in piece.segments:
            names.check_segment_path(segment.path, where=where)
            if not segment.path.startswith(folder):
                raise CorruptionError("piece names a segment outside its copy", where=where)
            if sizes.get(names.segment_object(segment.path)) != segment.bytes:
                # A drop may have deleted it before the piece was recorded.
                target.delete(path)
                raise MissingObjectError(
                    "a staged segment is gone", remedy="copy again", where=where, path=segment.path
                )
        if (piece.start, piece.end) != (start, end):
            raise CorruptionError("piece has another range than its name says", where=where)
        yield piece


def clear(target: Storage, copy_id: str) -> None:
    """Delete plan and pieces of a committed copy, best effort: upkeep deletes what is left."""
    try:
        for info in _objects(target, copy_id):
            if info.path.endswith(".json") and names.is_object(info.path):
                target.delete(info.path)
    except StorageError as error:
        _LOG.warning(
            "a finished copy's notes could not be deleted; upkeep will delete them: %s", error
        )


def _objects(target: Storage, copy_id: str) -> Iterator[ObjectInfo]:
    return target.list(f"{names.SEGMENTS_FOLDER}/{names.build_copy_token(copy_id)}")


def _pieces(paths: Iterable[str], made_by: str) -> dict[int, int]:
    """Return the end of the longest piece that starts at each offset. Pure."""
    found: dict[int, int] = {}
    for path in paths:
        piece = names.parse_piece(path)
        if piece is not None and piece[2] == made_by:
            found[piece[0]] = max(piece[1], found.get(piece[0], 0))
    return found


def _tile(pieces: dict[int, int], bounds: Range) -> Iterator[tuple[int, int, bool]]:
    """Yield the pieces (True) that tile a range, and the gaps (False) between them. Pure.

    >>> list(_tile({0: 10, 5: 15, 10: 20, 30: 40}, (0, 35)))
    [(0, 10, True), (10, 20, True), (20, 30, False), (30, 35, False)]
    """
    at, last = bounds
    starts = sorted(pieces)
    while at < last:
        end = pieces.get(at, 0)
        is_staged = at < end <= last
        if not is_staged:
            after = bisect_right(starts, at)
            end = min(starts[after], last) if after < len(starts) else last
        yield at, end, is_staged
        at = end
