"""Which objects may be deleted, and why the others stay. Pure: it reads nothing.

Two rules decide, each of which prevents a sequence of events that loses data:

- An object that a commit dropped may be deleted if that commit is at or before `log_start`, before
  every pin, and longer ago than the grace. Its age counts from that commit, by the store's clock,
  never from its creation: a month-old segment that was replaced a minute ago is a minute old.
- An object that no commit ever listed may be deleted if the version in its name is below the
  staging floor: no commit can list it any more. For what a copy staged, the time counts at which
  that copy last wrote an object.

After the last commit of a drop all may be deleted, but what another stream in the folder may need.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from segstore_ds.format import names
from segstore_ds.format.copies import all_pins
from segstore_ds.format.operation import OPERATIONS
from segstore_ds.format.root import Retired, Root
from segstore_ds.options.quantities import to_moment
from segstore_ds.status.references import References
from segstore_ds.storage import ObjectInfo

NEVER = "never committed"
_METADATA = "replaced metadata"


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a dropped stream, after which another one may have begun in the folder.

    Before the first commit of that one, only what a copy stages and what that commit refers to may
    belong to it. After it, everything may that was put since the last commit of this stream.
    """

    version: int  # of the last commit
    time_us: int  # when that commit was put, by the store's clock
    alone: bool  # no other stream had a commit when all objects were listed
    copied: frozenset[str]  # objects that copies had staged before the last commit

    def holder(self, info: ObjectInfo) -> str:
        """Return what a listed object waits for; "" if it is this stream's."""
        staged = info.path.startswith(names.COPIED)
        staged = staged or names.staged_version(info.path) == self.version
        sure = self.alone and not staged
        if sure or info.path in self.copied or info.modified_us < self.time_us:
            return ""
        return "another stream in the folder may need it"


@dataclass(frozen=True, slots=True)
class Horizon:
    """What may be deleted: dropped at or before a version and a time, or staged below a floor."""

    version: int  # the oldest that is kept or pinned
    time_us: int  # now less the grace, by the store's clock
    floor: int  # the staging floor
    pin: tuple[int, str] | None  # the oldest pinned version, and what pins it
    copied: frozenset[str] = frozenset()  # ids of finished copies: what they left may be deleted
    age_us: int = 0  # the age at which a dropped object may be deleted
    ended: Ended | None = None  # for a dropped stream, which lists and retires nothing

    def is_past(self, item: Retired) -> bool:
        """Tell whether a retirement lies before the horizon."""
        return item.version <= self.version and item.time_us <= self.time_us

    def holder(self, item: Retired) -> str:
        """Return what the objects of a retirement wait for; "" if they may be deleted."""
        if self.is_pinned(item):
            return f"{self.pin[1]} still needs it" if self.pin else ""
        if item.version > self.version:
            return "a version that is kept still needs it"
        return "within the grace" if item.time_us > self.time_us else ""

    def is_pinned(self, item: Retired) -> bool:
        """Tell whether a clone or tag needs the objects of a retirement, however old it is."""
        return self.pin is not None and item.version > self.pin[0]


@dataclass(frozen=True, slots=True)
class Item:
    """An object that the newest version does not list."""

    path: str  # its name in the stream's folder
    bytes: int | None  # its size; None from a round of upkeep, which does not read sizes
    why: str  # why the newest version does not list it
    dropped: int | None = None  # the version that dropped it; None if no commit ever listed it
    waits_for: str = ""  # what keeps it; "" if it may be deleted
    # When it was dropped, or else written (by the store's clock, UTC).
    since: datetime | None = None
    until: datetime | None = None  # when it may be deleted; None if not for a time


def plan_horizon(root: Root, *, floor: int, until_us: int, age_us: int = 0) -> Horizon:
    """Return what may be deleted as of a root."""
    # Within the grace, a clone's older versions may need objects that its newest one does not.
    held = [
        (pin.version, f"the clone {name!r}")
        for name, pin in all_pins(root).items()
        if pin.released_us is None or pin.released_us > until_us
    ]
    held += [(tag.version, f"the tag {name!r}") for name, tag in root.kept_tags.items()]
    pin = min(held, default=None)
    oldest = root.log_start if pin is None else min(root.log_start, pin[0])
    floor = max(floor, root.staging_floor)
    return Horizon(oldest, until_us, floor, pin, frozenset(root.copies), age_us)


def plan_deletion(
    refs: References,
    horizon: Horizon,
    objects: Iterable[ObjectInfo],
    operations: Mapping[int, str] | None = None,
) -> list[Item]:
    """Return the objects that are not listed, segments first, and what each waits for.

    `refs` is everything that the newest root refers to. `objects` are those in the folders of
    segments and status objects, and temporary files. `operations` has the operations of the commits
    that dropped some.
    """
    objects = sorted(objects, key=_order)
    written, items = _last_written(objects), list[Item]()
    for info in objects:
        path, retired = info.path, refs.retired.get(info.path)
        dropped_us = retired.time_us if retired else info.modified_us
        why, waits_for, until = NEVER, "", None
        if path in refs.live:
            continue
        if retired is not None:
            why = _dropped_by(path, (operations or {}).get(retired.version))
            waits_for = horizon.holder(retired)
            if not horizon.is_pinned(retired):
                until = to_moment(retired.time_us + horizon.age_us)
        elif names.is_temporary(path):
            # No commit can name it. A call that still needs it notices and starts again.
            why = "temporary file of an interrupted call"
            if info.modified_us > horizon.time_us and not horizon.ended:
                continue
        elif horizon.ended and names.is_object(path):
            why, waits_for = "its stream was dropped", horizon.ended.holder(info)
        elif names.is_object(path):
            why, waits_for = _judge_staged(path, horizon, written)
        else:
            why, waits_for = "not the name of a stream's object", "segstore did not create it"
        version = retired.version if retired else None
        since = to_moment(dropped_us)
        items.append(Item(path, info.size, why, version, waits_for, since, until))
    return items


def _order(info: ObjectInfo) -> tuple[int, str]:
    """Segments go before the parts that name them, and a twin before its object."""
    folders = (names.TWINS_FOLDER, names.STATUS_FOLDER)
    return sum(n * info.path.startswith(f"{each}/") for n, each in enumerate(folders, 1)), info.path


def _dropped_by(path: str, operation: str | None) -> str:
    if names.is_status(path):
        return _METADATA
    rule = OPERATIONS.get(operation or "")
    return rule.why if rule and rule.why else f"dropped by {operation or 'a commit'}"


def _judge_staged(path: str, horizon: Horizon, written: Mapping[str, int]) -> tuple[str, str]:
    """Return why no commit listed an object, and what it waits for.

    A name without a version is that of a copy's object. A copy commits a stream's first root, and
    this stream has one, so no other copy can commit here.
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
    """Return the id of the copy in an object's name; "" for other names."""
    return names.parse_copy_token(names.segment_token(path.partition("/")[2])) or ""


def _last_written(objects: Iterable[ObjectInfo]) -> dict[str, int]:
    """Return when each copy wrote its last object, by the copy's id."""
    written: dict[str, int] = {}
    for info in objects:
        copy_id = _copy_of(info.path)
        written[copy_id] = max(info.modified_us, written.get(copy_id, 0))
    return written
