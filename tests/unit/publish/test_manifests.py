"""Which manifests a snapshot keeps and writes: lists of files in, lists of files out."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from segstore_ds.publish.manifests import ADDED, Entry, Manifest, Rewrite, plan_manifests
from segstore_ds.publish.snapshot import File

CUTS = st.lists(st.integers(1, 60), unique=True).map(lambda cuts: sorted({0, *cuts}))


def file(start: int, end: int) -> Entry:
    """Return a file of the events start to end."""
    return Entry(ADDED, 1, 1, File(f"{start}-{end}", start, end, 1))


def manifest(files: list[Entry]) -> Manifest:
    """Return a manifest of adjacent files."""
    start, end = files[0].start, files[-1].end
    record = {"added_files_count": len(files), "existing_files_count": 0}
    return Manifest(f"m-{start}-{end}", start, end, record)


def tiles(cuts: list[int]) -> list[Entry]:
    """Return adjacent files that begin and end at the cuts."""
    return [file(start, end) for start, end in pairwise(cuts)]


@settings(max_examples=settings.default.max_examples * 3 // 5)
@given(CUTS, CUTS, st.integers(1, 4), st.integers(0, 60), st.integers(0, 60))
def test_planned_manifests_hold_each_file_once(
    old: list[int], new: list[int], size: int, low: int, high: int
) -> None:
    """Whatever range of files is replaced, by whatever files; what it does not touch is kept."""
    before = tiles(old)
    held = [before[at : at + size] for at in range(0, len(before), size)]
    lists = {manifest(files).path: files for files in held}
    removed = [entry for entry in before if low <= entry.start and entry.end <= high]
    kept = [entry for entry in before if entry not in removed]
    added = [
        entry
        for entry in tiles(new)
        if not any(entry.start < other.end and other.start < entry.end for other in kept)
    ]
    spans = [(entry.start, entry.end) for entry in removed]
    found, place = [], 0
    for item in plan_manifests([manifest(files) for files in held], spans, added):
        old_lists = item.old if isinstance(item, Rewrite) else (item,)
        listed = [entry for old_list in old_lists for entry in lists[old_list.path]]
        if isinstance(item, Rewrite):
            listed = sorted(
                [entry for entry in listed if entry not in removed] + [*item.added],
                key=lambda entry: entry.start,
            )
        else:
            assert not [entry for entry in listed if entry in removed]
        assert all(place <= entry.start for entry in listed)
        place = max([place, *(entry.end for entry in listed)])
        found += listed
    assert found == sorted(kept + added, key=lambda entry: entry.start)


def test_appends_leave_a_short_list() -> None:
    """One manifest at a time, for many files."""
    held: list[Manifest] = []
    rewritten = 0
    for start in range(5000):
        items = plan_manifests(held, [], [file(start, start + 1)])
        held = []
        for item in items:
            if isinstance(item, Manifest):
                held.append(item)
                continue
            first = item.old[0].start if item.old else start
            rewritten += len(item.old)
            record = {"added_files_count": item.files, "existing_files_count": 0}
            held.append(Manifest("", first, start + 1, record))
    assert sum(m.files for m in held) == 5000
    assert len(held) < 40
    assert rewritten < 5000 * 1.1
