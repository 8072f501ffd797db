"""Tags: names for cuts, stored in the root.

A tag holds back `retain`, but no explicit truncation. A tag below the head stays, and its use
raises TruncatedError.

A tag that keeps a version holds back the deletion of the version's objects, but no `retain`. It has
an object that lists the version's parts; the commit that removes the tag retires that object.
"""

from collections.abc import Mapping
from dataclasses import replace

from segstore_ds.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from segstore_ds.format import names
from segstore_ds.format.operation import Operation
from segstore_ds.format.redactions import expiry_of
from segstore_ds.format.root import KEPT_BYTES, SHOWN_TAGS, TAG_BYTES, TAGS_BYTES, Kept, Root, Tag
from segstore_ds.log.commit import Committed
from segstore_ds.log.context import StreamContext
from segstore_ds.read.cuts import Cut, check_range, resolve_cut
from segstore_ds.status.table import Slot

_LATER = "tag 'head' or a later cut"


def plan_tag(
    root: Root, name: str, offset: int, slot: Slot, *, move: bool, keep: bool = False
) -> Root | None:
    """Return the root with a tag, but not with its kept version; None if it is there. Pure."""
    known = root.tags.get(name)
    stays = not keep or (name in root.kept and not move)
    if known is not None and known.offset == offset and stays:
        return None
    if known is not None and known.offset != offset and not move:
        raise AlreadyExistsError(
            "the tag already names another cut",
            remedy="use another name, or move the tag with move=True",
            tag=name,
            offset=known.offset,
            asked=offset,
        )
    size = sum(len(each) + TAG_BYTES for each in {*root.tags, name})
    size += KEPT_BYTES * len({*root.kept, *([name] if keep else [])})
    if (known is None or keep) and size > TAGS_BYTES:
        raise InvalidInputError(
            "too many tags",
            remedy="remove some with tags.delete(name), or give shorter names",
            tags=len(root.tags),
            bytes=size,
            most_bytes=TAGS_BYTES,
        )
    tags = {**root.tags, name: Tag(offset, slot.version, slot.time_us)}
    return _with_tags(root, tags, slot, Operation.TAG)


def _with_tags(root: Root, tags: Mapping[str, Tag], slot: Slot, operation: Operation) -> Root:
    """Return the root with other tags; retires the lists of kept versions that lose their tag."""
    left = {name: it for name, it in root.kept.items() if tags.get(name) is root.tags[name]}
    gone = [it.parts for name, it in root.kept.items() if name not in left and it.parts is not None]
    retired = (*root.retired, *(slot.retire("status", part.path) for part in gone))
    return replace(root, tags=tags, kept=left, retired=retired, operation=operation)


def run_tag(context: StreamContext, name: str, cut: Cut, *, move: bool, keep: bool = False) -> Tag:
    """Name a cut, which is resolved once, against the newest version; safe to repeat.

    With `keep` the tag names the tail of the version that this commits, and that version stays
    readable. Returns the current tag.
    """
    names.check_label(name, what="tag")
    if keep and cut.kind != "tail":
        raise InvalidInputError(
            "a tag with keep=True names the tail, and no other cut",
            remedy="leave out the cut, or keep=True",
            tag=name,
        )
    root = context.log.refresh()
    offset = resolve_cut(context, root, cut)
    check_range(root, offset, offset, fail_on_data_loss=True, remedy=_LATER)

    def next_root(root: Root, slot: Slot) -> Root | None:
        cut_at = root.tail if keep else offset
        planned = plan_tag(root, name, cut_at, slot, move=move, keep=keep)
        if planned is None:
            return None
        # The head may have passed the cut since it was resolved.
        check_range(root, cut_at, cut_at, fail_on_data_loss=True, remedy=_LATER)
        return _keeping(context, planned, name) if keep else planned

    return context.commit(next_root).root.tags[name]


def _keeping(context: StreamContext, root: Root, name: str) -> Root:
    """Return the root with a tag that keeps this root's own version."""
    if root.origins:
        raise InvalidInputError(
            "a version of a clone can't be kept",
            remedy="call materialize() on it first",
            url=context.storage.url,
        )
    if expiry_of(root):
        raise InvalidInputError(
            "the stream has expiring values, which a kept version would still hold",
            remedy="copy the events to another stream, or call settings.update(expiry=None)",
            tag=name,
        )
    root, parts = context.status.put_listing(root)
    kept = Kept(root.head, len(root.epochs), parts)
    return replace(root, kept={**root.kept, name: kept})


def run_untag(context: StreamContext, name: str) -> Committed[None]:
    """Remove a tag; a repeated call raises NotFoundError."""
    if name not in (root := context.log.refresh()).tags:
        known = sorted(root.tags)
        raise NotFoundError("no such tag", tag=name, known=known[:SHOWN_TAGS])

    def next_root(root: Root, slot: Slot) -> Root | None:
        if name not in root.tags:
            return None
        tags = {key: tag for key, tag in root.tags.items() if key != name}
        return _with_tags(root, tags, slot, Operation.UNTAG)

    return context.commit(next_root)
