"""The operations that a commit may be, by the names that roots and rows of the history store.

A root's field stays a text: operations of later versions are read and carried through. Everything
that this version writes or asks for goes through `Operation`.
"""

from enum import StrEnum


class Operation(StrEnum):
    """What a commit did; a member is the text that is stored."""

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
    LOST = "lost"  # in rows of the history alone: a version that a repair left behind


# The operations after which a segment that was retired before may be listed.
RELISTING = frozenset({Operation.RESTORE, Operation.REPAIR})
