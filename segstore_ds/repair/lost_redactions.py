"""Finds out whether a repair with loss would bring redacted values back.

The commit that replaced segments may be among the lost ones. What it listed instead lies there,
under names that redactions alone give. Such an object that the newest readable commit neither lists
nor has retired is of a lost commit, or of a redaction that died before it: nothing tells which.
"""

from segstore_ds.commit.context import StreamContext
from segstore_ds.errors import FormatError, InvalidInputError
from segstore_ds.format import names
from segstore_ds.format.root import Root
from segstore_ds.status.references import read_references


def refuse_lost_redactions(context: StreamContext, base: Root) -> None:
    """Raise InvalidInputError if a redaction may be newer than what a repair follows."""
    listed = (info.path for info in context.storage.list(names.SEGMENTS_FOLDER))
    redacted = {path for path in listed if names.is_redacted(path)}
    unknown = redacted - _known(context, base) if redacted else redacted
    if unknown:
        raise InvalidInputError(
            "the lost commits may hold a redaction, and its values would come back",
            remedy="restore the files from a backup; or repair with allow_redacted=True, then "
            "redact again, with the same redact_id or another one",
            url=context.storage.url,
            version=base.version,
            objects=sorted(unknown)[:20],
        )


def _known(context: StreamContext, base: Root) -> set[str]:
    """Return what a version lists or has retired; nothing if that can't be read."""
    try:
        found = read_references(context.status, base)
    except FormatError:
        return set()
    return {*found.live, *found.retired}
