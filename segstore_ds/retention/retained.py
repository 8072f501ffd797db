"""What `retain` did, and what keeps it from dropping more."""

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from segstore_ds.format.root import Root, Tag
from segstore_ds.options.quantities import to_moment
from segstore_ds.read.reader_records import SeenReader

MOST_NAMED = 20


@dataclass(frozen=True, slots=True)
class Blocker:
    """What keeps `retain` from dropping the events from an offset on.

    Attributes:
        kind: `reader`, `tag`, `min_bytes`, `min_age`; or why there is nothing to drop: `max_bytes`,
            `max_age` and `max_event_age` are not exceeded, there are `no readers` to wait for,
            `no events`.
        offset: The first event that is kept for it.
        why: The same as a sentence.
        name: The reader's or the tag's.
        owner: The reader's.
        until: When it ends if nothing changes, by the store's clock (UTC): a reader lapses, an age
            is reached. None if that is unknown, or never.
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
        blocked_by: What kept it from dropping more, the lowest offset first and at most 20; empty
            if it dropped all that exceeds a maximum (without one: all that readers are done with).
    """

    head: int
    dropped: int
    blocked_by: tuple[Blocker, ...] = ()

    def __str__(self) -> str:
        lines = [f"dropped {self.dropped} events, the head is {self.head}"]
        return "\n".join([*lines, *(f"kept: {blocker}" for blocker in self.blocked_by)])


def until_text(until: dt.datetime | None) -> str:
    """Return an end for a sentence; nothing for None."""
    return "" if until is None else f" until {until.isoformat(timespec='seconds')}"


def reader_blockers(readers: Iterable[SeenReader], root: Root, wanted: int) -> list[Blocker]:
    """Return the live readers that need events below an offset that is otherwise free. Pure."""
    found = []
    for seen in readers:
        if (offset := seen.needs(root)) >= wanted:
            continue
        record, until = seen.record, to_moment(seen.renewed_us + seen.record.lapse_s * 1_000_000)
        owner = f" of {record.owner!r}" if record.owner else ""
        place = f"has read up to {record.offset}"
        if seen.lags(root):
            place = (
                f"is at {record.offset} of generation {record.generation}, behind the head "
                f"{root.head} of generation {root.generation}"
            )
        why = f"reader {seen.name!r}{owner} {place}; it is waited for{until_text(until)}"
        found.append(Blocker("reader", offset, why, seen.name, record.owner, until))
    return found


def tag_blockers(tags: Mapping[str, Tag], wanted: int) -> list[Blocker]:
    """Return the tags below an offset that is otherwise free. Pure."""
    lowest = sorted((tag.offset, name) for name, tag in tags.items() if tag.offset < wanted)
    return [
        Blocker("tag", offset, f"tag {name!r} is at {offset}", name)
        for offset, name in lowest[:MOST_NAMED]
    ]
