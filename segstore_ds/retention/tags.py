"""Tags: names for cuts, kept in the root.

A tag holds back `retain`, but never an explicit truncation. A tag below the head stays, and using
it raises TruncatedError.
"""

from dataclasses import replace

from segstore_ds.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from segstore_ds.format import names
from segstore_ds.format.operation import Operation
from segstore_ds.format.root import SHOWN_TAGS, TAG_BYTES, TAGS_BYTES, Root, Tag
from segstore_ds.log.commit import NOTHING, Change, Committed
from segstore_ds.log.context import StreamContext
from segstore_ds.read.cuts import Cut, check_range, resolve_cut
from segstore_ds.status.slot import Slot

_LATER = "tag 'head' or a later cut"


def plan_tag(root: Root, name: str, offset: int, slot: Slot, *, move: bool) -> Root | None:
    """Return the root with a tag; None if the tag is already at that offset. Pure."""
    known = root.tags.get(name)
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
    size = sum(len(each) + TAG_BYTES for each in {*root.tags, name})
    if known is None and size > TAGS_BYTES:
        raise InvalidInputError(
            "too many tags",
            remedy="remove some with tags.delete(name), or give shorter names",
            tags=len(root.tags),
            bytes=size,
            most_bytes=TAGS_BYTES,
        )
    tag = Tag(offset, slot.version, slot.time_us)
    return replace(root, tags={**root.tags, name: tag}, operation=Operation.TAG)


def run_tag(context: StreamContext, name: str, cut: Cut, *, move: bool) -> Tag:
    """Name a cut; safe to repeat. The cut is resolved once, against the newest version.

    Returns the current tag.
    """
    names.check_label(name, what="tag")
    root = context.log.refresh()
    offset = resolve_cut(context, root, cut)
    check_range(root, offset, offset, fail_on_data_loss=True, remedy=_LATER)

    def build(root: Root, slot: Slot) -> Change[None]:
        planned = plan_tag(root, name, offset, slot, move=move)
        if planned is None:
            return NOTHING
        # The head may have passed the cut since it was resolved.
        check_range(root, offset, offset, fail_on_data_loss=True, remedy=_LATER)
        return Change(replace(planned, client=context.client))

    return context.log.commit(build).root.tags[name]


def run_untag(context: StreamContext, name: str) -> Committed[None]:
    """Remove a tag; a repeated call raises NotFoundError."""
    if name not in (root := context.log.refresh()).tags:
        known = sorted(root.tags)
        raise NotFoundError("no such tag", tag=name, known=known[:SHOWN_TAGS])

    def build(root: Root, _slot: Slot) -> Change[None]:
        if name not in root.tags:
            return NOTHING
        tags = {key: tag for key, tag in root.tags.items() if key != name}
        return Change(replace(root, tags=tags, operation=Operation.UNTAG, client=context.client))

    return context.log.commit(build)
