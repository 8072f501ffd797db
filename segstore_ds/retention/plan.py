"""The plan of a deletion: what may go, and why the rest stays. Pure: it reads nothing.

Two rules decide about an object, each against a sequence of events that loses data:

- What a commit dropped goes if that commit is at or before `log_start` and before every pin, and
  longer ago than the grace. Ages count from that commit, by the store's clock, never from an
  object's creation: a month-old segment that a compaction replaced a minute ago is a minute old.
- What no commit ever listed goes if its name says a version below the staging floor: no commit can
  list it any more. Only temporary objects, which no commit can name, count from when they were
  written.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from segstore_ds.format import names
from segstore_ds.format.clones import all_pins
from segstore_ds.format.root import Retired, Root
from segstore_ds.read.storage_held import name_reason
from segstore_ds.status.references import References
from segstore_ds.storage import ObjectInfo

NEVER = "never committed"


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
        deleted: The objects that were deleted, or would be.
        kept: The objects that no version lists and that stay for now.
        mirrors: What stays in each folder that mirrors this one, by its location; None if it can't
            be reached.
    """

    dry_run: bool
    version: int
    log_start: int
    versions: int = 0
    merges: int = 0
    deleted: tuple[Item, ...] = ()
    kept: tuple[Item, ...] = ()
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
        deleted = "would delete" if self.dry_run else "deleted"
        for verb, items in ((deleted, self.deleted), ("kept for now", self.kept)):
            totals: dict[str, list[int]] = {}
            for item in items:
                totals.setdefault(item.why, []).append(item.bytes or 0)
            lines += [
                f"{verb}: {len(sizes)} objects, {sum(sizes)} bytes: {why}"
                for why, sizes in sorted(totals.items())
            ]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Horizon:
    """What may be deleted: dropped at or before a version and a time, or staged below a floor."""

    version: int  # the oldest that is kept or pinned
    time_us: int  # now less the grace, by the store's clock
    floor: int  # the staging floor
    pinned: bool  # whether a pin, not `log_start`, sets the version
    copied: frozenset[str] = frozenset()  # ids of copies that made it: unlisted, theirs may go

    def is_past(self, item: Retired) -> bool:
        """Tell whether a retirement lies before the horizon."""
        return item.version <= self.version and item.time_us <= self.time_us


def plan_horizon(root: Root, *, floor: int, until_us: int) -> Horizon:
    """Return what may be deleted as of a root."""
    pins = all_pins(root).values()
    # For the grace, readers of a clone's older versions need objects that the clone does not.
    held = [pin.version for pin in pins if pin.released_us is None or pin.released_us > until_us]
    oldest = min([root.log_start, *held])
    return Horizon(
        oldest,
        until_us,
        max(floor, root.staging_floor),
        oldest < root.log_start,
        frozenset(root.copies),
    )


def plan_objects(
    refs: References,
    horizon: Horizon,
    objects: Iterable[ObjectInfo],
    operations: Mapping[int, str] | None = None,
) -> tuple[list[Item], list[Item]]:
    """Return which of some objects to delete, segments first, and the unlisted ones to keep.

    `refs` is everything that the newest root refers to; `objects` are those in the folders of
    segments and status objects; `operations` says what the commits did that dropped some.
    """
    deleted: list[Item] = []
    kept: list[Item] = []
    objects = list(objects)
    written = _last_written(objects)
    for info in objects:
        if info.path in refs.live:
            continue
        retired = refs.retired.get(info.path)
        if retired is not None:
            why = name_reason(info.path, (operations or {}).get(retired.version))
            held = _hold_retired(retired.version, retired.time_us, horizon)
        elif names.is_object(info.path):
            why, held = _judge_staged(info.path, horizon, written)
        else:
            why, held = "not the name of a stream's object", "segstore did not create it"
        text = f"{why}: {held}" if held else why
        item = Item(info.path, info.size, text, retired.version if retired else None)
        (kept if held else deleted).append(item)
    deleted.sort(key=lambda item: (item.path.startswith(names.STATUS_FOLDER), item.path))
    return deleted, kept


def plan_temporaries(objects: Iterable[ObjectInfo], until_us: int) -> list[Item]:
    """Return the temporary objects that interrupted calls left before a time.

    If the process of one is still running, it finds the temporary gone and tries again.
    """
    return [
        Item(info.path, info.size, "temporary file of an interrupted call")
        for info in objects
        if info.modified_us <= until_us and names.is_temporary(info.path)
    ]


def _hold_retired(version: int, time_us: int, horizon: Horizon) -> str:
    """Return what a retired object waits for; "" if it may go."""
    if version > horizon.version:
        holder = "a pin" if horizon.pinned else "a version that is kept"
        return f"{holder} still needs it"
    return "within the grace" if time_us > horizon.time_us else ""


def _judge_staged(path: str, horizon: Horizon, written: Mapping[str, int]) -> tuple[str, str]:
    """Return what is known of an object that no commit listed, and what it waits for.

    What no version names was staged by a copy, which makes a stream's first root: there is one, so
    no other copy can commit it.
    """
    version, copy_id = names.staged_version(path), _copy_of(path)
    if version is not None:
        return NEVER, "its job may still commit it" if version >= horizon.floor else ""
    if copy_id in horizon.copied:
        return "left by an attempt at a finished copy", ""
    running = written[copy_id] > horizon.time_us
    why = "left by a copy that lost this location to another one"
    return why, "it was still running within the grace" if running else ""


def _copy_of(path: str) -> str:
    """Return the id of the copy that staged an object, as its name says; "" for other names."""
    return names.parse_copy_token(names.segment_token(path.partition("/")[2])) or ""


def _last_written(objects: Iterable[ObjectInfo]) -> dict[str, int]:
    """Return when something was last written for each copy, by its id."""
    written: dict[str, int] = {}
    for info in objects:
        copy_id = _copy_of(info.path)
        written[copy_id] = max(info.modified_us, written.get(copy_id, 0))
    return written
