"""Files that a published table names no more: readers of older states have the grace for them.

A file's age says nothing of its readers: one that was listed for a month may have been dropped a
minute ago. So what is unused is entered in an object of the table when it is first seen so, and
deleted by the round that sees it there a grace later, by the store's times.
"""

import json
from collections.abc import Collection, Mapping

from segstore_ds.errors import MissingObjectError
from segstore_ds.format.record import parse_json
from segstore_ds.log.operations import GRACE_S
from segstore_ds.storage import Storage


def mark_unused(
    storage: Storage, marks: str, unused: Collection[str], now_us: int, grace_s: float = GRACE_S
) -> Collection[str]:
    """Enter what is unused; return those paths that have been so for the grace."""
    old = read_marks(storage, marks)
    since = {path: old.get(path, now_us) for path in unused}
    expired = [path for path, since_us in since.items() if since_us <= now_us - int(grace_s * 1e6)]
    left = {path: since_us for path, since_us in since.items() if path not in expired}
    if left != old:
        storage.put(marks, json.dumps(left, separators=(",", ":")).encode())
    return expired


def read_marks(storage: Storage, marks: str) -> Mapping[str, int]:
    """Return since when each path has been unused."""
    try:
        found = parse_json(storage.get(marks), where=storage.describe(marks))
    except MissingObjectError:
        return {}
    return found if isinstance(found, dict) else {}
