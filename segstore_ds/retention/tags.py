"""Tags: names for cuts, kept in the root and, if there are many, in a blob.

A tag holds back `retain`, but never an explicit truncation. A tag below the head stays, and using
it raises TruncatedError. Only the operations `tag` and `untag` move tags to the blob. A removed tag
of the blob is null in the root until the next move.
"""

from dataclasses import replace

from segstore_ds.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from segstore_ds.format import names
from segstore_ds.format.operation import Operation
from segstore_ds.format.parts.kinds import TAGS
from segstore_ds.format.record import to_json
from segstore_ds.format.root import Root
from segstore_ds.format.tag import SHOWN_TAGS, TAGS_LIMIT, Tag
from segstore_ds.log.commit import NOTHING, Change, Committed
from segstore_ds.log.context import StreamContext
from segstore_ds.read.cuts import Cut, check_range, resolve_cut
from segstore_ds.status.blobs import StatusBlobs
from segstore_ds.status.slot import Slot

TAGS_INLINE = 64
TAGS_INLINE_HARD = 256
_LATER = "tag 'head' or a later cut"


def plan_tag(
    root: Root, name: str, offset: int, slot: Slot, *, known: Tag | None, move: bool
) -> Root | None:
    """Return the root with a tag; None if the tag is already at that offset. Pure.

    `known` is the current tag, wherever it is kept.

    Raises:
        AlreadyExistsError: The tag is at another offset, and `move` is False.
        InvalidInputError: There are too many tags.
    """
    if known is not None and known.offset == offset:
        return None
    if known is not None and not move:
        raise AlreadyExistsError(
            "tag already names another cut",
            remedy="use another name, or move the tag with move=True",
            tag=name,
            offset=known.offset,
            asked=offset,
        )
    count = len(root.tags) + (root.tags_blob.count if root.tags_blob else 0)
    if known is None and count >= TAGS_LIMIT:
        raise InvalidInputError(
            "too many tags", remedy="remove some with untag(name)", tags=count, most=TAGS_LIMIT
        )
    tag = Tag(offset, slot.version, slot.time_us)
    return replace(root, tags={**root.tags, name: to_json(tag)}, operation=Operation.TAG)


def plan_untag(root: Root, name: str, *, moved: bool) -> Root:
    """Return the root without a tag; `moved` means that the blob holds the tag. Pure."""
    tags = {key: value for key, value in root.tags.items() if key != name}
    if moved:
        tags[name] = None
    return replace(root, tags=tags, operation=Operation.UNTAG)


def spill_tags(blobs: StatusBlobs, root: Root, slot: Slot) -> Root:
    """Move the tags of a root to a blob if there are many, or too many after a lost race."""
    if len(root.tags) <= (TAGS_INLINE if slot.attempt == 0 else TAGS_INLINE_HARD):
        return root
    tags, old, retired, blob = blobs.tags(root), root.tags_blob, root.retired, None
    # The commit's own tag stays inline. The blob holds only tags that the parent has, so that
    # repair can rebuild the blob from the parent.
    own = {name: tag for name, tag in tags.items() if tag.version == slot.version}
    moved = {name: tag for name, tag in tags.items() if name not in own}
    if moved:
        blob = blobs.put(root.version, TAGS, moved, len(moved))
    if old is not None:
        retired = (*retired, slot.retire("status", old.path))
    inline = {name: to_json(tag) for name, tag in own.items()}
    return replace(root, tags=inline, tags_blob=blob, retired=retired)


def run_tag(context: StreamContext, name: str, cut: Cut, *, move: bool) -> Tag:
    """Name a cut; safe to repeat. The cut is resolved once, against the newest version.

    Returns the current tag.

    Raises:
        AlreadyExistsError: The tag is at another offset, and `move` is False.
        InvalidInputError: Not a name, or too many tags.
        TruncatedError: The cut lies below the head.
        PositionError: The cut lies beyond the tail, or is of another stream or generation.
        NotFoundError: There is no such version, tag or reader.
    """
    names.check_label(name, what="tag")
    root = context.log.refresh()
    offset = resolve_cut(context, root, cut)
    check_range(root, offset, offset, fail_on_data_loss=True, remedy=_LATER)

    def build(root: Root, slot: Slot) -> Change[None]:
        known = context.status.tag(root, name)
        planned = plan_tag(root, name, offset, slot, known=known, move=move)
        if planned is None:
            return NOTHING
        # The head may have passed the cut since it was resolved.
        check_range(root, offset, offset, fail_on_data_loss=True, remedy=_LATER)
        return Change(spill_tags(context.status, replace(planned, client=context.client), slot))

    done = context.log.commit(build).root
    return context.status.tags(done)[name]


def run_untag(context: StreamContext, name: str) -> Committed[None]:
    """Remove a tag; a repeated call raises NotFoundError.

    Raises:
        NotFoundError: There is no such tag.
    """
    if context.status.tag(context.log.refresh(), name) is None:
        known = sorted(context.status.tags(context.log.root))
        raise NotFoundError("no such tag", tag=name, known=known[:SHOWN_TAGS])

    def build(root: Root, slot: Slot) -> Change[None]:
        if context.status.tag(root, name) is None:
            return NOTHING
        moved = root.tags_blob is not None and name in context.status.tags_blob(root.tags_blob)
        planned = plan_untag(root, name, moved=moved)
        return Change(spill_tags(context.status, replace(planned, client=context.client), slot))

    return context.log.commit(build)
