"""The property that says which values expire, and how far its rules have come (FORMAT.md 4.11).

Each rule is carried out as one redaction that never ends. Its record says up to which time that was
done, and before which offset nothing is left to do.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.record import ABSENT, Positive, build_json, to_json
from segstore_ds.format.redactions import MOST_RULES, Redaction, redactions_of
from segstore_ds.format.root import Root, property_of

EXPIRY_PROPERTY = "expiry"  # On disk: the property that holds the rules. Never change.
DAY_US, MINUTE_US = 86_400_000_000, 60_000_000
SHARE = 32  # of its age that a value may outlive it, so that a segment is rewritten so often


@dataclass(frozen=True, slots=True)
class Expiry:
    """A rule by which the values of a column become null.

    Attributes:
        column: The column.
        age_s: How old an event is by then, in seconds.
        filters: Which events, as a text; None for all.
        extra: What a newer version stores of a rule, which this one does not carry out.
    """

    column: str
    age_s: Positive
    filters: Annotated[str | None, ABSENT] = None
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def redact_id(self) -> str:
        """The id of its redaction, which another age does not change."""
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
    """Return the rules that a stream has; CorruptionError if they can't be read."""
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
    """Raise InvalidInputError where tags keep versions, whose values nothing erases. Pure."""
    if tags := sorted(root.kept_tags):
        raise InvalidInputError(
            "tags keep versions, and the values in them would stay",
            remedy="remove them with tags.delete(name), call this, then set them again",
            tags=tags,
        )
