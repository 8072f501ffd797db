"""Redactions: the records by which a root knows which of its versions hold values no more.

A root carries the newest ones as they were stored. They are parsed where they are needed. No record
says what was looked for: neither the filter nor a digest of it, nor a value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.record import ABSENT, UNSTORED, Limit, TimeUs, from_json, to_json
from segstore_ds.format.root import Root

MOST_REDACTIONS = 16  # a root keeps the newest; an older one is done again if it is repeated
MOST_RULES = 8  # by which values expire: each has a record beside those
MOST_REASON = 200  # characters


@dataclass(frozen=True, slots=True)
class Redaction:
    """A redaction that was begun; FORMAT.md 3.1 has the fields."""

    redact_id: Annotated[str, UNSTORED]
    version: int  # the first without the values, as far as it has come
    tail: int
    rows: int = 0
    segments: int = 0
    time_us: TimeUs = 0  # of its newest commit, by which a grace counts
    done: bool = False  # nothing matches any more below `tail`
    reason: Annotated[str, Limit(MOST_REASON)] = ""
    # Of values that expire: before which offset, and up to which time, nothing is left.
    start: Annotated[int | None, ABSENT] = None
    until_us: Annotated[TimeUs | None, ABSENT] = None
    # Of a rule with filters: the version on which it last went through its events.
    checked: Annotated[int | None, ABSENT] = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def redactions_of(root: Root) -> dict[str, Redaction]:
    """Return the redactions that a root knows, by id."""
    return {
        name: from_json(Redaction, value, where=f"redaction {name!r}", redact_id=name)
        for name, value in root.redactions.items()
    }


def clean_since(root: Root) -> int:
    """Return the version below which versions may hold values that were redacted; 0 for none."""
    return max((known.version for known in redactions_of(root).values()), default=0)


def refuse_unclean(root: Root, version: int) -> None:
    """Raise InvalidInputError where a version may hold values that were redacted since. Pure."""
    since = clean_since(root)
    if version < since:
        raise InvalidInputError(
            "the version is older than a redaction and may hold the redacted values",
            remedy="take a later version; or set allow_redacted=True and redact the result",
            version=version,
            redacted=since,
        )


def with_redaction(root: Root, redaction: Redaction) -> Root:
    """Return a root with a redaction noted, and without the oldest ones beyond the most."""
    known = {**redactions_of(root), redaction.redact_id: redaction}
    newest = sorted(known.values(), key=lambda each: (each.version, each.time_us))
    asked = [each for each in newest if each.until_us is None][-MOST_REDACTIONS:]
    ruled = [each for each in newest if each.until_us is not None]
    ruled.sort(key=lambda each: each.time_us)
    gone, ruled = ruled[:-MOST_RULES], ruled[-MOST_RULES:]
    if gone:  # the records that stay must refuse the versions that these refused
        since = max(each.version for each in (*gone, ruled[0]))
        ruled[0] = replace(ruled[0], version=since)
    return replace(root, redactions={each.redact_id: to_json(each) for each in (*asked, *ruled)})
