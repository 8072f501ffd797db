"""The property that holds a stream's retention policy (FORMAT.md 3.1)."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from segstore_ds.errors import CorruptionError, InvalidInputError

PROPERTY = "retention"  # On disk: the property that holds a policy. Never change.


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What `retain` keeps.

    Attributes:
        max_bytes: Drop the oldest segments while the rest is larger, in encoded bytes.
        max_age_s: Drop events committed longer ago, in seconds.
        min_bytes: Keep at least so many encoded bytes, whatever else allows dropping them.
        min_age_s: Keep events committed within that time, in seconds.
        respect_readers: Keep events that a tag or a live reader needs.
    """

    max_bytes: int | None = None
    max_age_s: int | None = None
    min_bytes: int | None = None
    min_age_s: int | None = None
    respect_readers: bool = True

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            InvalidInputError: A bound is not an int from 0, or nothing could ever be dropped.
        """
        bounds = (self.max_bytes, self.max_age_s, self.min_bytes, self.min_age_s)
        if any(bound is not None and (type(bound) is not int or bound < 0) for bound in bounds):
            raise InvalidInputError(
                "bounds of retention are out of range",
                remedy="give whole numbers of at least 0",
                policy=str(self),
            )
        if self.max_bytes is None and self.max_age_s is None and not self.respect_readers:
            raise InvalidInputError(
                "policy drops nothing",
                remedy="give max_bytes or max_age_s; without them set respect_readers=True, "
                "to drop what every reader is done with",
            )

    def to_json(self) -> str:
        """Return the text that a stream's property holds."""
        return json.dumps(asdict(self), sort_keys=True)


def parse_policy(text: str) -> RetentionPolicy:
    """Return the policy that a stream's property holds.

    Raises:
        CorruptionError: The text is not a policy that this version understands.
    """
    try:
        value: Any = json.loads(text)
        return RetentionPolicy(**value)
    except (ValueError, TypeError, InvalidInputError) as error:
        raise CorruptionError("retention property can't be read", text=text) from error
