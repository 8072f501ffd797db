"""Maintain: everything that upkeep does, now, to the end, and with a full look for orphans."""

from collections import Counter
from dataclasses import dataclass

from segstore_ds.compact.merges import run_due_merge
from segstore_ds.format.policies import DEFAULT_POLICY, upkeep_of
from segstore_ds.log.context import StreamContext
from segstore_ds.read.storage_held import name_reason
from segstore_ds.retention.purge import run_purge
from segstore_ds.retention.vacuum import Deleted, Kept, run_vacuum

_MOST_MERGES = 1000


@dataclass(frozen=True, slots=True)
class Total:
    """How many objects were deleted, or stay for now, for one reason."""

    why: str
    objects: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Maintenance:
    """What `Stream.maintain` did.

    Attributes:
        version: The newest version afterwards.
        versions: How many old versions were forgotten.
        merges: How many merges of status, history and retired parts were made.
        deleted: Totals of the objects that were deleted, by reason.
        kept: Totals of the objects that no version lists and that stay for now, by reason.
    """

    version: int
    versions: int
    merges: int
    deleted: tuple[Total, ...]
    kept: tuple[Total, ...]

    @property
    def bytes(self) -> int:
        """Total bytes of the deleted objects."""
        return sum(total.bytes for total in self.deleted)

    def __str__(self) -> str:
        lines = [f"forgot {self.versions} versions, made {self.merges} merges, at {self.version}"]
        for verb, totals in (("deleted", self.deleted), ("kept for now", self.kept)):
            lines += [f"{verb}: {t.objects} objects, {t.bytes} bytes: {t.why}" for t in totals]
        return "\n".join(lines)


def run_maintain(context: StreamContext) -> Maintenance:
    """Purge, vacuum and merge by the stream's policy, or by the default one where upkeep is off.

    Safe to repeat, and to run beside everything else.
    """
    before = context.log.refresh()
    policy = upkeep_of(before) or DEFAULT_POLICY
    start = run_purge(context, older_than_s=policy.keep_s)
    excess = context.log.refresh().version + 1 - policy.keep_versions
    if excess > start:
        start = run_purge(context, older_than_s=0, keep_versions=policy.keep_versions)
    report = run_vacuum(context, dry_run=False, grace_s=policy.grace_s)
    merges = 0
    while merges < _MOST_MERGES:
        version = context.log.refresh().version
        run_due_merge(context, thorough=True)
        if context.log.root.version == version:
            break
        merges += 1
    root = context.log.root
    entries: list[Deleted | Kept] = [*report.deleted, *report.kept]
    dropped = {entry.dropped for entry in entries if entry.dropped is not None}
    operations = context.log.history.operations(root, dropped)

    def reason(entry: Deleted | Kept) -> str:
        if entry.dropped is None:
            return "never committed"
        return name_reason(entry.path, operations.get(entry.dropped))

    deleted = [(reason(entry), entry.bytes) for entry in report.deleted]
    kept = [(f"{reason(entry)}: {_what_holds(entry)}", entry.bytes) for entry in report.kept]
    return Maintenance(
        root.version, start - before.log_start, merges, _totals(deleted), _totals(kept)
    )


def _what_holds(entry: Kept) -> str:
    """Return what an object waits for, without the version that its own reason names."""
    if entry.dropped is not None:
        why = entry.why.removeprefix(f"dropped by version {entry.dropped}")
        return why.removeprefix(", and").lstrip()
    words = (word.rstrip(",") for word in entry.why.split(" "))
    return " ".join(word for word in words if not word.isdecimal())


def _totals(entries: list[tuple[str, int]]) -> tuple[Total, ...]:
    objects, sizes = Counter[str](), Counter[str]()
    for why, size in entries:
        objects[why] += 1
        sizes[why] += size
    return tuple(Total(why, count, sizes[why]) for why, count in sorted(objects.items()))
