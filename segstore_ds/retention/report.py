"""The reports of `retain` and `maintain`: what was dropped or deleted, and what keeps the rest."""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field

from segstore_ds.status.deletable import Item


@dataclass(frozen=True, slots=True)
class Blocker:
    """What keeps `retain` from dropping the events from an offset on.

    Attributes:
        kind: `reader`, `tag`, `min_bytes` or `min_age`. Or why there is nothing to drop:
            `max_bytes`, `max_age` or `max_event_age` is not exceeded; `no readers`; `no events`.
        offset: The first event that it keeps.
        why: The reason as a sentence.
        name: The name of the reader or tag; otherwise empty.
        owner: The owner of the reader; otherwise empty.
        until: When it ends if nothing changes, by the store's clock (UTC): when a reader lapses or
            an age is reached. None if unknown or never.
    """

    kind: str
    offset: int
    why: str
    name: str = ""
    owner: str = ""
    until: dt.datetime | None = None

    def __str__(self) -> str:
        return self.why


@dataclass(frozen=True, slots=True)
class Retained:
    """What `Stream.retain` did.

    Attributes:
        head: The offset of the oldest event kept.
        dropped: How many events were dropped.
        blocked_by: What kept it from dropping more, at most 20, the lowest offset first. Empty if
            it dropped all that exceeds a maximum (without a maximum: all that readers are done
            with).
    """

    head: int
    dropped: int
    blocked_by: tuple[Blocker, ...] = ()

    def __str__(self) -> str:
        lines = [f"dropped {self.dropped} events, the head is {self.head}"]
        return "\n".join([*lines, *(f"kept: {blocker}" for blocker in self.blocked_by)])


@dataclass(frozen=True, slots=True)
class Maintenance:
    """What `maintain` or a round of upkeep did, or would do.

    Attributes:
        dry_run: True if nothing was changed.
        version: The newest version afterwards.
        log_start: The oldest version kept.
        versions: How many old versions were forgotten.
        merges: How many merges of status, history and retired parts were made.
        expired: In how many events values have expired and were removed.
        deleted: The objects that were deleted, or would be.
        kept: The objects that the newest version does not list and that stay for now.
        log_files: How many commit files of older versions stay for now.
        log_bytes: Their total size in bytes.
        until: When all of these may be deleted by the ages given, if nothing is committed meanwhile
            (by the store's clock, UTC); None if nothing waits for a time.
        mirrors: The objects that stay in each replica, by its location; None if it can't be
            reached.
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
    until: dt.datetime | None = None
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
                text = f"{item.why}: {item.waits_for}" if item.waits_for else item.why
                totals.setdefault(text, []).append(item.bytes or 0)
            lines += [
                f"{verb}: {len(sizes)} objects, {sum(sizes)} bytes: {why}"
                for why, sizes in sorted(totals.items())
            ]
        if self.log_files:
            lines += [f"kept for now: {self.log_files} commit files, {self.log_bytes} bytes"]
        if self.until:
            at = f"{self.until:%Y-%m-%dT%H:%M:%SZ}"
            lines += [f"all of that may be deleted at {at}, if nothing is committed meanwhile"]
        return "\n".join(lines)
