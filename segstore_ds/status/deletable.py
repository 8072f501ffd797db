"""What may be deleted, and why the rest stays. Pure: it reads nothing.

Two rules decide about an object, each against a sequence of events that loses data:

- What a commit dropped goes if that commit is at or before `log_start` and before every pin, and
  longer ago than the grace. Ages count from that commit, by the store's clock, never from an
  object's creation: a month-old segment that a compaction replaced a minute ago is a minute old.
- What no commit ever listed goes if its name says a version below the staging floor: no commit can
  list it any more. Only what a copy staged counts from when it was written.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from segstore_ds.format import names
from segstore_ds.format.copies import all_pins
from segstore_ds.format.operation import Operation
from segstore_ds.format.root import Retired, Root
from segstore_ds.status.references import References
from segstore_ds.storage import ObjectInfo

NEVER = "never committed"
_METADATA = "replaced metadata"
_DROPPED_BY: Mapping[str, str] = {
    Operation.COMPACT: "replaced by compactions",
    Operation.REDACT: "replaced by redactions",
    Operation.OVERWRITE: "overwritten",
    Operation.TRUNCATE: "dropped by truncate or retention",
    Operation.RESTORE: "replaced by a restore",
}


@dataclass(frozen=True, slots=True)
class Horizon:
    """What may be deleted: dropped at or before a version and a time, or staged below a floor."""

    version: int  # the oldest that is kept or pinned
    time_us: int  # now less the grace, by the store's clock
    floor: int  # the staging floor
    pin: tuple[int, str] | None  # the oldest pinned version, and what pins it
    copied: frozenset[str] = frozenset()  # ids of copies that made it: unlisted, theirs may go

    def is_past(self, item: Retired) -> bool:
        """Tell whether a retirement lies before the horizon."""
        return item.version <= self.version and item.time_us <= self.time_us

    def holder(self, item: Retired) -> str:
        """Return what the objects of a retirement wait for; "" if they may go."""
        if self.is_pinned(item):
            return f"{self.pin[1]} still needs it" if self.pin else ""
        if item.version > self.version:
            return "a version that is kept still needs it"
        return "within the grace" if item.time_us > self.time_us else ""

    def is_pinned(self, item: Retired) -> bool:
        """Tell whether a clone or tag needs the objects of a retirement, however old it is."""
        return self.pin is not None and item.version > self.pin[0]


@dataclass(frozen=True, slots=True)
class Unlisted:
    """An object that the newest version does not list, and what is known of it."""

    info: ObjectInfo
    why: str  # why it is not listed: what the commit that dropped it did
    held: str  # what it waits for; "" if it may go
    retired: Retired | None = None  # None if no commit ever listed it


def plan_horizon(root: Root, *, floor: int, until_us: int) -> Horizon:
    """Return what may be deleted as of a root."""
    # For the grace, readers of a clone's older versions need objects that the clone does not.
    held = [
        (pin.version, f"the clone {name!r}")
        for name, pin in all_pins(root).items()
        if pin.released_us is None or pin.released_us > until_us
    ]
    held += [(tag.version, f"the tag {name!r}") for name, tag in root.kept_tags.items()]
    pin = min(held, default=None)
    oldest = root.log_start if pin is None else min(root.log_start, pin[0])
    return Horizon(oldest, until_us, max(floor, root.staging_floor), pin, frozenset(root.copies))


def find_deletable(
    refs: References,
    horizon: Horizon,
    objects: Iterable[ObjectInfo],
    operations: Mapping[int, str] | None = None,
) -> Iterator[Unlisted]:
    """Yield those of some objects that are not listed, and whether they may go.

    `refs` is everything that the newest root refers to; `objects` are those in the folders of
    segments and status objects; `operations` says what the commits did that dropped some.
    """
    objects = list(objects)
    written = _last_written(objects)
    for info in objects:
        if info.path in refs.live:
            continue
        retired = refs.retired.get(info.path)
        if retired is not None:
            why = _dropped_by(info.path, (operations or {}).get(retired.version))
            yield Unlisted(info, why, horizon.holder(retired), retired)
        elif names.is_object(info.path):
            yield Unlisted(info, *_judge_staged(info.path, horizon, written))
        else:
            why = "not the name of a stream's object"
            yield Unlisted(info, why, "segstore did not create it")


def _dropped_by(path: str, operation: str | None) -> str:
    if path.startswith(names.STATUS_FOLDER):
        return _METADATA
    return _DROPPED_BY.get(operation or "", f"dropped by {operation or 'a commit'}")


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
