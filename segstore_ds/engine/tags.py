"""Tags: names for cuts, kept in the root.

A tag holds back `retain`, never an explicit truncation; one that has fallen below the head stays
and answers with TruncatedError.
"""

from dataclasses import replace

from segstore_ds.engine.commit import Committed, StreamLog
from segstore_ds.engine.cuts import Cut, check_range, resolve_cut
from segstore_ds.engine.state import Slot
from segstore_ds.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from segstore_ds.format import names
from segstore_ds.format.root import Root
from segstore_ds.format.tag import TAGS_LIMIT, Tag, parse_tags, tag_value


def tags_of(root: Root) -> dict[str, Tag]:
    """Return a root's tags by name.

    Raises:
        CorruptionError: One can't be read.
    """
    return parse_tags(root.tags, where=f"version {root.version}")


def plan_tag(root: Root, name: str, offset: int, slot: Slot, *, move: bool) -> Root | None:
    """Return the root with a tag; None where it stands there already. Pure.

    Raises:
        AlreadyExistsError: The name stands elsewhere and may not move.
        InvalidInputError: There are too many tags.
        CorruptionError: The tags can't be read.
    """
    known = tags_of(root).get(name)
    if known is not None and known.offset == offset:
        return None
    if known is not None and not move:
        raise AlreadyExistsError(
            "tag stands at another cut",
            remedy="take another name, or move it with move=True",
            tag=name,
            offset=known.offset,
            asked=offset,
        )
    if known is None and len(root.tags) >= TAGS_LIMIT:
        raise InvalidInputError(
            "too many tags", remedy="remove some with untag(name)", tags=len(root.tags)
        )
    tag = Tag(offset, slot.version, slot.time_us)
    return replace(root, tags={**root.tags, name: tag_value(tag)}, operation="tag")


def run_tag(log: StreamLog, name: str, cut: Cut, *, move: bool, client: str) -> Tag:
    """Give a cut a name; safe to repeat. The cut is bound once, against the newest version.

    Returns:
        The tag as it stands now.

    Raises:
        AlreadyExistsError: The name stands elsewhere and may not move.
        InvalidInputError: Not a name, or too many tags.
        TruncatedError: The cut lies below the head.
        PositionError: The cut lies beyond the tail, or is of another stream or generation.
        NotFoundError: There is no such version, tag or reader.
        ConflictError: Every race was lost; nothing was committed.
        CommitUnknownError: It may or may not be in the log.
        FormatError: Metadata can't be read.
        StorageError: The storage failed.
    """
    names.check_label(name, what="tag")
    root = log.refresh()
    offset = resolve_cut(log, root, cut)
    check_range(root, offset, offset, fail_on_data_loss=True)

    def build(root: Root, slot: Slot) -> Root | None:
        planned = plan_tag(root, name, offset, slot, move=move)
        return None if planned is None else replace(planned, client=client)

    return tags_of(log.commit(build, transaction=log.clock.new_id()).root)[name]


def run_untag(log: StreamLog, name: str, *, client: str) -> Committed:
    """Remove a tag; safe to repeat, unless it never was there.

    Raises:
        NotFoundError: There is no such tag.
        ConflictError: Every race was lost; nothing was committed.
        CommitUnknownError: It may or may not be in the log.
        FormatError: Metadata can't be read.
        StorageError: The storage failed.
    """
    if name not in log.refresh().tags:
        raise NotFoundError("no such tag", tag=name, known=sorted(log.root.tags))

    def build(root: Root, _slot: Slot) -> Root | None:
        if name not in root.tags:
            return None
        kept = {key: value for key, value in root.tags.items() if key != name}
        return replace(root, tags=kept, operation="untag", client=client)

    return log.commit(build, transaction=log.clock.new_id())
