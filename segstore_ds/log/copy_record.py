"""The rules of a copy by events: which commits its record forbids until the copy is done.

The record is kept in the destination's root. It names the copy, the range of the source that was
fixed when the copy began, and how many of those events are in the destination. Until the copy is
done, only the copy itself can use the destination: `check_complete` refuses it wherever a root is
opened, and `check_commit` refuses every commit that is neither the copy's nor upkeep.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from segstore_ds.errors import CorruptionError, IncompleteStreamError
from segstore_ds.format.copies import CopyRecord, parse_copy
from segstore_ds.format.operation import Operation
from segstore_ds.format.root import Root

# What may be committed to a stream whose copy is not done: no events, and nothing that names one.
_UPKEEP = frozenset(
    {
        Operation.COPY,
        Operation.DROP,
        Operation.VACUUM,
        Operation.PURGE,
        Operation.UPKEEP,
        Operation.MERGE,
    }
)


def find_incomplete(root: Root) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the unfinished copies into a stream, with their ids; almost all streams have none.

    A record that can't be read counts as unfinished.
    """
    for copy_id, value in root.copies.items():
        fields = value if isinstance(value, Mapping) else {}
        if fields.get("done") is not True:
            yield copy_id, fields


def check_complete(root: Root, *, url: str) -> None:
    """Refuse a stream that a copy has not filled yet, or a version from before it had.

    Raises:
        IncompleteStreamError: Names the copy and its progress.
    """
    for copy_id, fields in find_incomplete(root):
        raise IncompleteStreamError(
            "a copy into this stream is not done",
            url=url,
            version=root.version,
            copy_id=copy_id,
            copied=fields.get("progress"),
            source=fields.get("source"),
        )


def check_commit(old: Root, new: Root, *, url: str) -> None:
    """Refuse a commit to a stream that a copy has not filled, except the copy's own and upkeep.

    Raises IncompleteStreamError as `check_complete`.
    """
    if new.operation not in _UPKEEP:
        check_complete(old, url=url)


def broken_copies(old: Root, new: Root) -> Iterator[str]:
    """Yield the rules about copies that a commit breaks."""
    if new.operation == Operation.DROP:
        return
    unfinished = dict(find_incomplete(old))
    for copy_id, before in old.copies.items():
        after = new.copies.get(copy_id)
        if copy_id not in unfinished or new.operation != Operation.COPY:
            if after != before:
                yield f"the record of a copy stays: {copy_id}"
        else:
            was, now = _readable(copy_id, before), _readable(copy_id, after)
            if was is None or now is None or was.begun != now.begun:
                yield f"a copy keeps what it was begun with: {copy_id}"
            elif not was.transformed and now.progress - was.progress != new.tail - old.tail:
                yield f"events and progress move together: {copy_id}"
    if {*new.copies} - {*old.copies}:
        yield "a copy begins with its stream"
    if new.sealed and not old.sealed and [*find_incomplete(new)]:
        yield "a stream is sealed when its copy is done"


def _readable(copy_id: str, value: Any) -> CopyRecord | None:
    try:
        return parse_copy(copy_id, value)
    except CorruptionError:
        return None
