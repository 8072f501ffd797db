"""Rules about the history within one root (FORMAT.md 3.2). Pure."""

from collections.abc import Iterator

from segstore_ds.format.root import Root


def broken_history(root: Root) -> Iterator[str]:
    """Yield the rules about the history within one root that the root breaks. Pure."""
    refs = (*root.history_lists, *root.history_parts)
    spans = [(ref.start, ref.end) for ref in refs]
    spans += [(row.version, row.version + 1) for row in root.history]
    cursor = 0
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
