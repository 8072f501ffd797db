"""The properties with a stream's policies and its rules for events (FORMAT.md 3.1)."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any

from segstore_ds.errors import CorruptionError, InvalidInputError
from segstore_ds.format.record import ABSENT, MAX_INT, build_json, from_json, parse_json, to_json
from segstore_ds.format.root import RULES_PROPERTY, Root
from segstore_ds.options.arguments import check_duration, check_size
from segstore_ds.options.quantities import Duration, Size

RETENTION_PROPERTY = "retention"  # On disk: the property that holds the policy. Never change.
# On disk: the names in that property of the policy's attributes. Never change.
_KEYS = {
    "max_bytes": "max_bytes",
    "max_age": "max_age_s",
    "min_bytes": "min_bytes",
    "min_age": "min_age_s",
    "max_event_age": "max_event_age_s",
    "respect_readers": "respect_readers",
}


@dataclass(frozen=True, slots=True, init=False)
class RetentionPolicy:
    """What `retain` keeps.

    Sizes are bytes or texts such as ``"10g"`` (powers of 1024), ages are seconds, a timedelta or
    texts such as ``"7d"``; the attributes are bytes and seconds.

    Attributes:
        max_bytes: Drop the oldest segments while the rest is larger (encoded bytes).
        max_age: Drop events committed longer ago.
        min_bytes: Keep at least this many encoded bytes, whatever else allows dropping them.
        min_age: Keep events that were committed within this age.
        respect_readers: Keep events that a tag or a live reader needs.
        max_event_age: Drop what lies before the first event whose own time is within this age.

    Examples:
        >>> segstore.RetentionPolicy(max_bytes="10g", min_age="7d").min_age
        604800
    """

    max_bytes: int | None
    max_age: int | None
    min_bytes: int | None
    min_age: int | None
    respect_readers: bool
    max_event_age: int | None

    def __init__(
        self,
        max_bytes: Size | None = None,
        max_age: Duration | None = None,
        min_bytes: Size | None = None,
        min_age: Duration | None = None,
        respect_readers: bool = True,
        *,
        max_event_age: Duration | None = None,
    ) -> None:
        """Check the bounds and turn them into bytes and seconds."""
        if not isinstance(respect_readers, bool):
            raise InvalidInputError(
                "not a boolean",
                remedy="give respect_readers as True or False",
                respect_readers=respect_readers,
            )
        maxima = (max_bytes, max_age, max_event_age)
        if maxima == (None, None, None) and not respect_readers:
            raise InvalidInputError(
                "policy drops nothing",
                remedy="give max_bytes, max_age or max_event_age; without them set "
                "respect_readers=True, to drop what every reader is done with",
            )
        for name, value in (
            ("max_bytes", check_size("max_bytes", max_bytes)),
            ("max_age", check_duration("max_age", max_age)),
            ("min_bytes", check_size("min_bytes", min_bytes)),
            ("min_age", check_duration("min_age", min_age)),
            ("respect_readers", respect_readers),
            ("max_event_age", check_duration("max_event_age", max_event_age)),
        ):
            object.__setattr__(self, name, value)

    def to_json(self) -> str:
        """Return the text that a stream's property holds."""
        value = {key: getattr(self, name) for name, key in _KEYS.items()}
        if self.max_event_age is None:
            del value["max_event_age_s"]  # versions without it refuse policies that have it
        return json.dumps(value, sort_keys=True)


def has_maximum(policy: RetentionPolicy) -> bool:
    """Tell whether a policy drops events by age or size, not only when readers are done."""
    maxima = (policy.max_bytes, policy.max_age, policy.max_event_age)
    return any(bound is not None for bound in maxima)


def as_policy(given: RetentionPolicy | Mapping[str, Any]) -> RetentionPolicy:
    """Return a policy as it is, or made from a mapping of its arguments.

    >>> as_policy({"max_age": "7d", "max_bytes": "10g"}).max_age
    604800
    """
    if isinstance(given, RetentionPolicy):
        return given
    known = [field.name for field in fields(RetentionPolicy)]
    if not isinstance(given, Mapping) or not given or not set(given) <= set(known):
        raise InvalidInputError(
            "not a retention policy",
            remedy="give segstore.RetentionPolicy(max_age='7d'), or a dict with some of "
            f"{', '.join(known)}",
            policy=given,
        )
    return RetentionPolicy(**given)


def parse_policy(text: str) -> RetentionPolicy:
    """Return the policy in a property; CorruptionError if it is not one of this version."""
    try:
        stored = dict(parse_json(text, where=RETENTION_PROPERTY).items())
        values = {name: stored.pop(key, None) for name, key in _KEYS.items() if key in stored}
        policy = RetentionPolicy(**values)
    except (ValueError, TypeError, AttributeError, InvalidInputError) as error:
        raise CorruptionError("retention property can't be read", text=text) from error
    if stored or any(isinstance(value, str) for value in values.values()):
        raise CorruptionError("retention property has other values than numbers", text=text)
    return policy


UPKEEP_PROPERTY = "upkeep"  # On disk: the property that holds the policy. Never change.
OFF = "off"  # On disk: the property's text on a stream without upkeep. Never change.
DAY_S = 86_400
GRACE_S = 7 * DAY_S  # how long a retired object is kept


@dataclass(frozen=True, slots=True)
class UpkeepPolicy:
    """What upkeep keeps; every version is kept for an hour, whatever the policy says.

    Attributes:
        keep_s: Forget versions that were superseded longer ago, in seconds.
        keep_versions: Keep at most this many versions.
        grace_s: Delete objects this many seconds after they were dropped (at least a day); also how
            long a job may stage before it commits.

    Examples:
        >>> stream.settings.update(upkeep=segstore.UpkeepPolicy(keep_s=3600))
        >>> stream.settings.upkeep.keep_s
        3600
    """

    keep_s: int = DAY_S
    keep_versions: int = 10_000
    grace_s: int = GRACE_S

    def __post_init__(self) -> None:
        """Check the fields."""
        bounds = ((self.keep_s, 0), (self.keep_versions, 1), (self.grace_s, DAY_S))
        most = MAX_INT // 10**6  # as microseconds
        if any(type(bound) is not int or not least <= bound <= most for bound, least in bounds):
            raise InvalidInputError(
                "bounds of upkeep are out of range",
                remedy="give whole numbers: keep_s from 0, keep_versions from 1, grace_s from "
                f"{DAY_S}",
                policy=str(self),
            )

    def to_json(self) -> str:
        """Return the text that a stream's property holds."""
        return json.dumps(asdict(self), sort_keys=True)


DEFAULT_POLICY = UpkeepPolicy()


def build_upkeep(policy: UpkeepPolicy | None) -> str | None:
    """Return the property's text, None for the default policy; no policy switches upkeep off."""
    if not isinstance(policy, UpkeepPolicy | None):
        raise InvalidInputError(
            "not an upkeep policy",
            remedy="give segstore.UpkeepPolicy(keep_s=...), or None to switch upkeep off",
            type=type(policy).__name__,
        )
    if policy is None:
        return OFF
    return None if policy == DEFAULT_POLICY else policy.to_json()


def upkeep_of(root: Root) -> UpkeepPolicy | None:
    """Return the upkeep policy of a stream, the default one unless it says otherwise."""
    text = root.properties.get(UPKEEP_PROPERTY)
    if text is None:
        return DEFAULT_POLICY
    if text == OFF:
        return None
    try:
        value: Any = parse_json(text, where=UPKEEP_PROPERTY)
        return UpkeepPolicy(**value)
    except (ValueError, TypeError, InvalidInputError) as error:
        raise CorruptionError("upkeep property can't be read", text=text) from error


@dataclass(frozen=True, slots=True)
class Rules:
    """What events must satisfy to be appended.

    Attributes:
        not_null: The columns that need a value.
        checks: Filters by name, as texts, none of which may be false; unknown passes, as in SQL.
        dead_letters: Where events that break a rule go, if they have a writer's batch id; None to
            refuse the write.
    """

    not_null: tuple[str, ...] = ()
    checks: Mapping[str, str] = field(default_factory=dict, hash=False)
    dead_letters: Annotated[str | None, ABSENT] = None


def build_rules(rules: Rules) -> str | None:
    """Return the property's text for rules; None for none."""
    return build_json(to_json(rules)).decode() if rules.not_null or rules.checks else None


def has_letters(root: Root) -> bool:
    """Tell whether events that break a rule go to dead letters instead of the stream."""
    rules = rules_of(root)
    return rules is not None and rules.dead_letters is not None


def load_rules(text: str) -> Rules:
    """Return the rules of a property's text, by stored names; CorruptionError if there are none."""
    where = f"property {RULES_PROPERTY}"
    return from_json(Rules, parse_json(text, where=where), where=where)


def rules_of(root: Root) -> Rules | None:
    """Return the rules of a stream; None for none."""
    text = root.properties.get(RULES_PROPERTY)
    return None if text is None else load_rules(text)
