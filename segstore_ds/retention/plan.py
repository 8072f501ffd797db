"""The report of a deletion, and which objects it deletes. Pure: it reads nothing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from segstore_ds.format import names
from segstore_ds.status.deletable import Horizon, find_deletable
from segstore_ds.status.references import References
from segstore_ds.storage import ObjectInfo


@dataclass(frozen=True, slots=True)
class Item:
    """An object that no current version lists.

    Attributes:
        path: Its name in the stream's folder.
        bytes: Its size; None if a round of upkeep deleted it, which asks for no sizes.
        why: Why it may go: what the commit that dropped it did. If it stays, what it waits for.
        dropped: The version that dropped it; None if no commit ever listed it.
    """

    path: str
    bytes: int | None
    why: str
    dropped: int | None = None


@dataclass(frozen=True, slots=True)
class Maintenance:
    """What `maintain` or a round of upkeep did, or would do.

    Attributes:
        dry_run: True if nothing was changed.
        version: The newest version afterwards.
        log_start: The oldest version kept.
        versions: How many old versions were forgotten.
        merges: How many merges of status, history and retired parts were made.
        expired: How many events lost values that have expired.
        deleted: The objects that were deleted, or would be.
        kept: The objects that no version lists and that stay for now.
        log_files: How many commit files of older versions stay for now.
        log_bytes: Their total size in bytes.
        until: When all of these may go by the ages asked for, if nothing is committed meanwhile (by
            the store's clock, UTC); None if nothing waits for a time.
        mirrors: What stays in each folder that mirrors this one, by its location; None if it can't
            be reached.
    """

    dry_run: bool
    version: int
    log_start: int
    versions: int = 0
    merges: int = 0
    expired: int = 0
    deleted: tuple[Item, ...] = ()
    kept: tuple[Item, ...] = ()
    log_files: int = 0
    log_bytes: int = 0
    until: datetime | None = None
    mirrors: Mapping[str, tuple[Item, ...] | None] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Total bytes of the deleted objects."""
        return sum(item.bytes or 0 for item in self.deleted)

    def __str__(self) -> str:
        forgot = "would forget" if self.dry_run else "forgot"
        kept = f"the oldest kept is {self.log_start}, the newest {self.version}"
        lines = [f"{forgot} {self.versions} versions: {kept}"]
        lines += [f"made {self.merges} merges"] if self.merges else []
        expired = "would expire" if self.dry_run else "expired"
        lines += [f"{expired} values of {self.expired} events"] if self.expired else []
        deleted = "would delete" if self.dry_run else "deleted"
        for verb, items in ((deleted, self.deleted), ("kept for now", self.kept)):
            totals: dict[str, list[int]] = {}
            for item in items:
                totals.setdefault(item.why, []).append(item.bytes or 0)
            lines += [
                f"{verb}: {len(sizes)} objects, {sum(sizes)} bytes: {why}"
                for why, sizes in sorted(totals.items())
            ]
        if self.log_files:
            lines += [f"kept for now: {self.log_files} commit files, {self.log_bytes} bytes"]
        if self.until:
            at = f"{self.until:%Y-%m-%dT%H:%M:%SZ}"
            lines += [f"all of that may go at {at}, if nothing is committed meanwhile"]
        return "\n".join(lines)


def plan_objects(
    refs: References,
    horizon: Horizon,
    objects: Iterable[ObjectInfo],
    operations: Mapping[int, str] | None = None,
) -> tuple[list[Item], list[Item]]:
    """Return which of some objects to delete, segments first, and the unlisted ones to keep."""
    deleted: list[Item] = []
    kept: list[Item] = []
    for found in find_deletable(refs, horizon, objects, operations):
        text = f"{found.why}: {found.held}" if found.held else found.why
        dropped = found.retired.version if found.retired else None
        item = Item(found.info.path, found.info.size, text, dropped)
        (kept if found.held else deleted).append(item)
    deleted.sort(key=lambda item: (item.path.startswith(names.STATUS_FOLDER), item.path))
    return deleted, kept


def plan_temporaries(objects: Iterable[ObjectInfo], until_us: int) -> list[Item]:
    """Return the temporary objects that interrupted calls left before a time.

    No commit can name one, so their age is that of the object. If the process of one is still
    running, it finds the temporary gone and tries again.
    """
    return [
        Item(info.path, info.size, "temporary file of an interrupted call")
        for info in objects
        if info.modified_us <= until_us and names.is_temporary(info.path)
    ]
