"""The operations of commits, by their stored names, and what each may change.

A root's field stays a text, because operations of later versions are read and carried through.
Everything that this version writes or compares is an `Operation`. `OPERATIONS` says which fields an
operation owns; the rules between two roots and the reasons for a deletion are derived from that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Operation(StrEnum):
    """What a commit did; each member is the stored text."""

    # On disk. Never change; add a new one.
    CREATE = "create"
    APPEND = "append"
    OVERWRITE = "overwrite"
    COPY = "copy"
    COMPACT = "compact"
    REDACT = "redact"
    TRUNCATE = "truncate"
    SEAL = "seal"
    RESTORE = "restore"
    DROP = "drop"
    TAG = "tag"
    UNTAG = "untag"
    READER = "reader"
    PIN = "pin"
    UNPIN = "unpin"
    MATERIALIZE = "materialize"
    SET_PROPERTIES = "set-properties"
    CHANGE_SCHEMA = "change-schema"
    FOLLOW = "follow"
    PROMOTE = "promote"
    REPAIR = "repair"
    PURGE = "purge"
    UPKEEP = "upkeep"
    MERGE = "merge"
    LOST = "lost"  # only in history rows: a version that a repair abandoned


# Operations that may list a segment that was retired before.
RELISTING = frozenset({Operation.RESTORE, Operation.REPAIR})


@dataclass(frozen=True, slots=True)
class Rule:
    """What a commit of an operation may change."""

    owns: str = ""  # fields of the root, besides those that every commit may change
    rewrites: bool = False  # it replaces segments by others with the same events and offsets
    why: str = ""  # why the objects that it dropped are no longer listed


_WRITES = "tail next_segment epochs reader_features"
# Other operations (repair, those of first roots and of later versions) have no such rule.
OPERATIONS: Mapping[str, Rule] = {
    Operation.APPEND: Rule(_WRITES),
    Operation.OVERWRITE: Rule(f"{_WRITES} head", why="overwritten"),
    Operation.COMPACT: Rule("next_segment", rewrites=True, why="replaced by compactions"),
    Operation.REDACT: Rule("next_segment redactions", rewrites=True, why="replaced by redactions"),
    Operation.TRUNCATE: Rule("head", why="dropped by truncate or retention"),
    Operation.SEAL: Rule("sealed"),
    Operation.RESTORE: Rule(f"{_WRITES} head restored", why="replaced by a restore"),
    Operation.DROP: Rule("head sealed staging_floor dropped"),
    Operation.TAG: Rule("tags kept"),
    Operation.UNTAG: Rule("tags kept"),
    Operation.READER: Rule(),
    Operation.PIN: Rule("pins"),
    Operation.UNPIN: Rule("pins"),
    Operation.MATERIALIZE: Rule("origins"),
    Operation.SET_PROPERTIES: Rule("properties writer_features"),
    Operation.CHANGE_SCHEMA: Rule("epochs reader_features writer_features"),
    Operation.FOLLOW: Rule("properties"),
    Operation.PROMOTE: Rule("properties generation"),
    Operation.PURGE: Rule("log_start"),
    Operation.UPKEEP: Rule("log_start staging_floor upkeep"),
    Operation.MERGE: Rule(),
}
