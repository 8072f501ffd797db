"""The property that holds a stream's upkeep policy (FORMAT.md 3.1)."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from segstore_ds.errors import CorruptionError, InvalidInputError
from segstore_ds.format.record import MAX_INT, parse_json
from segstore_ds.format.root import Root

PROPERTY = "upkeep"  # On disk: the property that holds the policy. Never change.
OFF = "off"  # On disk: the property's text on a stream without upkeep. Never change.
DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class UpkeepPolicy:
    """What upkeep keeps; every version is kept for an hour, whatever the policy says.

    Attributes:
        keep_s: Forget versions that were superseded longer ago, in seconds.
        keep_versions: Keep at most this many versions.
        grace_s: Delete objects this many seconds after they were dropped (at least a day); also how
            long a job may stage before it commits.
    """

    keep_s: int = DAY_S
    keep_versions: int = 10_000
    grace_s: int = 7 * DAY_S

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            InvalidInputError: A bound is not an int, or too small.
        """
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


def build_upkeep(policy: UpkeepPolicy | None) -> str:
    """Return the property's text for a policy; None switches upkeep off."""
    return OFF if policy is None else policy.to_json()


def upkeep_of(root: Root) -> UpkeepPolicy | None:
    """Return the upkeep policy of a stream, the default one unless it says otherwise.

    Raises:
        CorruptionError: The property can't be read.
    """
    text = root.properties.get(PROPERTY)
    if text is None:
        return DEFAULT_POLICY
    if text == OFF:
        return None
    try:
        value: Any = parse_json(text, where=PROPERTY)
        return UpkeepPolicy(**value)
    except (ValueError, TypeError, InvalidInputError) as error:
        raise CorruptionError("upkeep property can't be read", text=text) from error
