"""Redactions: the records in a root that say which versions no longer hold redacted values.

A root keeps the newest ones unparsed. They are parsed when they are needed. No record says what was
redacted: it has neither the filter nor a digest of it, nor a value.

A property says which values expire (FORMAT.md 4.11). Each of its rules is one redaction that never
ends. Its record says up to which time it was done, and below which offset nothing is left to do.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.record import (
    ABSENT,
    UNSTORED,
    Limit,
    Positive,
    TimeUs,
    build_json,
    from_json,
    to_json,
)
from segstore_ds.format.root import Root, property_of

MOST_REDACTIONS = 16  # a root keeps the newest; an older one is done again if it is repeated
MOST_RULES = 8  # most rules by which values expire; each has a record besides those
MOST_REASON = 200  # characters
EXPIRY_PROPERTY = "expiry"  # On disk: the property that holds the rules. Never change.
DAY_US, MINUTE_US = 86_400_000_000, 60_000_000
SHARE = 32  # a value may outlive its age by 1/32; less would rewrite segments more often


@dataclass(frozen=True, slots=True)
class Redaction:
    """A redaction that was begun; FORMAT.md 3.1 has the fields."""

    redact_id: Annotated[str, UNSTORED]
    version: int  # the first version without the values, as far as it is done
    tail: int
    rows: int = 0
    segments: int = 0
    time_us: TimeUs = 0  # of its newest commit; a grace counts from it
    done: bool = False  # nothing matches any more below `tail`
    reason: Annotated[str, Limit(MOST_REASON)] = ""
    # For values that expire: the offset below which, and the time up to which, nothing is left.
    start: Annotated[int | None, ABSENT] = None
    until_us: Annotated[TimeUs | None, ABSENT] = None
    # For a rule with filters: the version on which it was last checked.
    checked: Annotated[int | None, ABSENT] = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def redactions_of(root: Root) -> dict[str, Redaction]:
    """Return the redactions of a root, by id."""
    return {
        name: from_json(Redaction, value, where=f"redaction {name!r}", redact_id=name)
        for name, value in root.redactions.items()
    }


def clean_since(root: Root) -> int:
    """Return the version below which versions may hold redacted values; 0 for none."""
    return max((known.version for known in redactions_of(root).values()), default=0)


def refuse_unclean(root: Root, version: int) -> None:
    """Raise InvalidInputError if a version may hold values that were redacted since. Pure."""
    since = clean_since(root)
    if version < since:
        raise InvalidInputError(
            "the version is older than a redaction and may hold the redacted values",
            remedy="take a later version; or set allow_redacted=True and redact the result",
            version=version,
            redacted=since,
        )


def with_redaction(root: Root, redaction: Redaction) -> Root:
    """Return a root with the record of a redaction, and without the oldest ones above the limit."""
    known = {**redactions_of(root), redaction.redact_id: redaction}
    newest = sorted(known.values(), key=lambda each: (each.version, each.time_us))
    asked = [each for each in newest if each.until_us is None][-MOST_REDACTIONS:]
    ruled = [each for each in newest if each.until_us is not None]
    ruled.sort(key=lambda each: each.time_us)
    gone, ruled = ruled[:-MOST_RULES], ruled[-MOST_RULES:]
    if gone:  # the remaining records must refuse all versions that these refused
        since = max(each.version for each in (*gone, ruled[0]))
        ruled[0] = replace(ruled[0], version=since)
    return replace(root, redactions={each.redact_id: to_json(each) for each in (*asked, *ruled)})


@dataclass(frozen=True, slots=True)
class Expiry:
    """A rule by which the values of a column become null.

    Attributes:
        column: The column.
        age_s: The age of an event, in seconds, from which on the value is null.
        filters: Which events, as a text; None for all.
        extra: Fields of a newer version, which this version does not carry out.
    """

    column: str
    age_s: Positive
    filters: Annotated[str | None, ABSENT] = None
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def redact_id(self) -> str:
        """The id of its redaction, which does not depend on the age."""
        key = build_json([self.column, self.filters])
        return f"expiry-{hashlib.blake2b(key, digest_size=8).hexdigest()}"

    def until_us(self, now_us: int) -> int:
        """Return the time before which events are due: in steps, at most a day behind."""
        step = min(max(self.age_s * 1_000_000 // SHARE, MINUTE_US), DAY_US)
        return max(now_us - self.age_s * 1_000_000, 0) // step * step


def build_expiry(rules: tuple[Expiry, ...]) -> str | None:
    """Return the property's text for rules; None for none."""
    return build_json([to_json(rule) for rule in rules]).decode() if rules else None


def expiry_of(root: Root) -> tuple[Expiry, ...]:
    """Return the rules of a stream; CorruptionError if they can't be read."""
    return (property_of(root, EXPIRY_PROPERTY, tuple[Expiry, ...]) or ())[:MOST_RULES]


def due_rules(root: Root, now_us: int) -> list[tuple[Expiry, int]]:
    """Return the rules that have something to do, with the time before which events are due."""
    rules = [rule for rule in expiry_of(root) if not rule.extra]
    known = redactions_of(root) if rules else {}
    due = [(rule, rule.until_us(now_us)) for rule in rules]
    return [(rule, until) for rule, until in due if _is_due(known.get(rule.redact_id), until)]


def _is_due(record: Redaction | None, until_us: int) -> bool:
    return record is None or not record.done or (record.until_us or 0) < until_us


def refuse_kept(root: Root) -> None:
    """Raise InvalidInputError if tags keep versions, whose values would not be erased. Pure."""
    if tags := sorted(root.kept_tags):
        raise InvalidInputError(
            "tags keep versions, and the values in them would stay",
            remedy="remove them with tags.delete(name), call this, then set them again",
            tags=tags,
        )
