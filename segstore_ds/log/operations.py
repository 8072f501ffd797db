"""What each operation may change in a root, and how the objects that it lists move between states.

Pure. Each object of a stream lives once: it is staged, a commit lists it, another commit drops and
so retires it, and vacuum deletes it. Only `restore` goes back, while the object still exists. A
commit that makes any other move, or changes a field that its operation does not own, is a bug of
ours; it is detected before the commit is written.
"""

import enum
from collections.abc import Iterator, Mapping

from segstore_ds.errors import InternalError
from segstore_ds.format.operation import Operation
from segstore_ds.format.root import Root

GRACE_S = 7 * 86_400.0  # how long a retired object is kept


class ObjectState(enum.Enum):
    """The states in the life of a stream's object."""

    STAGED = "staged"
    COMMITTED = "committed"
    RETIRED = "retired"
    DELETED = "deleted"


# Each allowed move and who makes it; no other move is allowed.
MOVES: Mapping[tuple[ObjectState, ObjectState], str] = {
    (ObjectState.STAGED, ObjectState.COMMITTED): "a commit",
    (ObjectState.COMMITTED, ObjectState.RETIRED): "a commit that drops it",
    (ObjectState.RETIRED, ObjectState.COMMITTED): "a restore of a version that lists it",
    (
        ObjectState.STAGED,
        ObjectState.DELETED,
    ): "vacuum or upkeep under the staging floor, or its own writer",
    (ObjectState.RETIRED, ObjectState.DELETED): "vacuum or upkeep after the grace",
}

_TAGGING = frozenset({Operation.TAG, Operation.UNTAG})
_WRITES = frozenset({Operation.APPEND, Operation.OVERWRITE, Operation.RESTORE})
_REWRITES = frozenset({Operation.COMPACT, Operation.REDACT})
# Field -> the operations that may change it; every commit may change the fields not listed.
_OWNERS: Mapping[str, frozenset[str]] = {
    "head": frozenset({Operation.OVERWRITE, Operation.TRUNCATE, Operation.RESTORE, Operation.DROP}),
    "tail": _WRITES,
    "next_segment": _WRITES | _REWRITES,
    "epochs": _WRITES,
    "sealed": frozenset({Operation.SEAL, Operation.DROP}),
    "log_start": frozenset({Operation.PURGE, Operation.UPKEEP}),
    "staging_floor": frozenset({Operation.VACUUM, Operation.UPKEEP, Operation.DROP}),
    "upkeep": frozenset({Operation.UPKEEP}),
    "restored": frozenset({Operation.RESTORE, Operation.REPAIR}),
    "tags": _TAGGING,
    "properties": frozenset(
        {Operation.SET_PROPERTIES, Operation.FOLLOW, Operation.PROMOTE, Operation.REPAIR}
    ),
    "dropped": frozenset({Operation.DROP}),
    "reader_features": frozenset(),
    "writer_features": frozenset(),
    "generation": frozenset({Operation.REPAIR, Operation.PROMOTE}),
    "pins": frozenset({Operation.PIN, Operation.UNPIN}),
    "origins": frozenset({Operation.MATERIALIZE}),
    "redactions": frozenset({Operation.REDACT}),
}
_UNOWNED = frozenset({Operation.READER, Operation.MERGE})
# Other operations (repair, and those of later versions) follow rules of their own.
_KNOWN = _UNOWNED.union(*_OWNERS.values()) - {Operation.REPAIR}


def check_move(path: str, old: ObjectState, new: ObjectState) -> None:
    """Raise InternalError when an object may not go from state `old` to state `new`."""
    if (old, new) not in MOVES:
        raise InternalError(
            "illegal state change of an object", path=path, old=old.value, new=new.value
        )


def broken_by_operation(old: Root, new: Root) -> Iterator[str]:
    """Yield what a commit changes though its operation may not, and what it drops unretired."""
    if new.operation in _KNOWN:
        for field, owners in _OWNERS.items():
            if new.operation not in owners and getattr(new, field) != getattr(old, field):
                yield f"{new.operation} leaves {field} alone"
        if new.operation in _REWRITES and new.listed_start != old.listed_start:
            yield f"{new.operation} leaves every offset alone"
        yield from _lost(old, new)


def _lost(old: Root, new: Root) -> Iterator[str]:
    if new.retired_parts != old.retired_parts:
        return  # this commit's retired objects may have moved to the new part
    if new.lists != old.lists:
        return  # parts may have moved to a list of parts
    retired = {item.path for item in new.retired}
    listed = {part.path for part in new.parts}
    for part in old.parts:
        if part.path not in listed and part.path not in retired:
            yield f"a part that is dropped is retired: {part.path}"
    if listed - {part.path for part in old.parts}:
        return  # entries may have moved to a new part
    listed_now = {entry.path for entry in new.entries}
    for entry in old.entries:
        if entry.frame is None and entry.path not in listed_now | retired:
            yield f"a segment that is dropped is retired: {entry.path}"
