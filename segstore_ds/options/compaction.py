"""What a compaction aims at: checked where it is made, whoever asks for it."""

from dataclasses import dataclass

from segstore_ds.errors import InvalidInputError
from segstore_ds.options.arguments import check_whole
from segstore_ds.options.parsing import default

MERGE, STITCH, SPLIT = "merge", "stitch", "split"
MODES = (MERGE, STITCH, SPLIT)
# So many small segments make a medium one, a third of the target; so many of those a big one.
MINOR = (4, 3)


@dataclass(frozen=True, slots=True)
class CompactRules:
    """What a compaction aims at.

    Attributes:
        mode: ``merge``, ``stitch`` or ``split``.
        target_rows: Most events of an output.
        target_bytes: Most encoded bytes of an output.
        minor: None takes every run within the targets. ``(small, medium)`` takes only runs that are
            worth it: at least twice their largest input, of at least that many inputs, where the
            run stays below a third of the target, and where it does not. So an event is rewritten
            a logarithmic number of times however often this is called.
        budget_bytes: Most encoded bytes of all inputs together, the newest runs first; None for
            any. No run is larger than that.
    """

    mode: str = default("compactMode")
    target_rows: int = default("compactRows")
    target_bytes: int = default("compactBytes")
    minor: tuple[int, int] | None = None
    budget_bytes: int | None = None

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            InvalidInputError: A target or a threshold is out of range, or there is no such mode.
        """
        if self.mode not in MODES:
            raise InvalidInputError(
                "no such compaction", remedy=f"use one of {', '.join(MODES)}", mode=self.mode
            )
        check_whole("target_rows", self.target_rows, least=1)
        check_whole("target_bytes", self.target_bytes, least=1)
        check_whole("budget_bytes", self.budget_bytes, optional=True)
        if self.minor is not None:
            if not isinstance(self.minor, tuple | list) or len(self.minor) != len(MINOR):
                raise InvalidInputError(
                    "not a pair of thresholds", remedy="give minor as (4, 3)", minor=self.minor
                )
            for threshold in self.minor:
                check_whole("minor", threshold)
        limits = (self.target_rows, self.target_bytes, self.budget_bytes or 1)
        if min(limits) < 1 or min(self.minor or MINOR) < 2:
            raise InvalidInputError(
                "a compaction's targets are out of range",
                remedy="give targets of at least 1 and thresholds of at least 2",
                rows=self.target_rows,
                bytes=self.target_bytes,
                minor=self.minor,
            )

    @property
    def most_bytes(self) -> int:
        """Most encoded bytes of one run."""
        return min(self.target_bytes, self.budget_bytes or self.target_bytes)
