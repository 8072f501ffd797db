"""Pieces of a copy: the first attempt at one counts, whoever comes later."""

import uuid

from segstore_ds.copy.staging import StagedPiece, find_gaps, put_piece, read_pieces
from segstore_ds.format.root import SegmentEntry
from segstore_ds.storage import Storage, open_storage

MADE_BY = "0" * 12


def _staged(target: Storage, start: int, end: int, attempt: str) -> StagedPiece:
    path = f"copy-c/{start}-{attempt}-0.arrow"
    target.create(f"segments/{path}", b"x" * 9)
    segment = SegmentEntry(0, path, end - start, 9, 3, 1)
    return StagedPiece(start, end, MADE_BY, (segment,))


def test_the_first_attempt_at_a_piece_counts() -> None:
    """A later one leaves the object as it is, and deletes what it staged itself."""
    target = open_storage(f"memory://{uuid.uuid4().hex}")
    first, second = (_staged(target, 0, 10, attempt * 12) for attempt in "ab")
    assert put_piece(target, "c", first)
    assert put_piece(target, "c", first)  # its answer was lost
    assert not put_piece(target, "c", second)
    assert [*read_pieces(target, "c", MADE_BY, (0, 10))] == [first]
    assert {info.path for info in target.list("segments") if info.path.endswith(".arrow")} == {
        f"segments/{first.segments[0].path}"
    }


def test_gaps_lie_between_the_pieces_of_one_maker() -> None:
    target = open_storage(f"memory://{uuid.uuid4().hex}")
    put_piece(target, "c", _staged(target, 10, 20, "a" * 12))
    put_piece(target, "c", _staged(target, 30, 45, "b" * 12))
    assert find_gaps(target, "c", MADE_BY, (0, 40), most=8) == [
        (0, 8),
        (8, 10),
        (20, 28),
        (28, 30),
        (30, 38),
        (38, 40),
    ]
    assert find_gaps(target, "c", "1" * 12, (0, 40), most=40) == [(0, 40)]
    assert find_gaps(target, "d", MADE_BY, (0, 40), most=40) == [(0, 40)]
