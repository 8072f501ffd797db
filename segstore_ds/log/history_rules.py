"""Rules about the history within one root, and about going back in it (FORMAT.md 3.2). Pure."""

from collections.abc import Iterator

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.redactions import redacted_since
from segstore_ds.format.root import Root


def refuse_redacted(root: Root, version: int) -> None:
    """Raise InvalidInputError where a version may hold values that were redacted since. Pure."""
    since = redacted_since(root)
    if version < since:
        raise InvalidInputError(
            "the version is older than a redaction and may hold the redacted values",
            remedy="take a later version; or set allow_redacted=True and redact the result",
            version=version,
            redacted=since,
        )


def first_recorded(root: Root) -> int:
    """Return the version that the history begins with: that of the stream's first commit. Pure."""
    refs = (*root.history_lists, *root.history_parts)
    firsts = [ref.start for ref in refs] + [row.version for row in root.history]
    return min(firsts, default=0)


def broken_history(root: Root) -> Iterator[str]:
    """Yield the rules about the history within one root that the root breaks. Pure."""
    refs = (*root.history_lists, *root.history_parts)
    spans = [(ref.start, ref.end) for ref in refs]
    spans += [(row.version, row.version + 1) for row in root.history]
    cursor = min(first_recorded(root), root.log_start) if root.parent else root.version
    for start, end in spans:
        if start != cursor:
            yield "the history has a row for every version"
        cursor = end
    if cursor != root.version + 1 or not root.history:
        yield "the history ends with this version"
    times = [time for ref in refs for time in (ref.time_us, ref.last_us)]
    times += [row.time_us for row in root.history]
    if times != sorted(times):
        yield "the history's times never go back"
