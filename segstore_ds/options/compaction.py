"""The targets of a compaction, checked when they are created."""

from dataclasses import dataclass

from segstore_ds.errors import InvalidInputError
from segstore_ds.options.arguments import check_whole
from segstore_ds.options.table import COMPACT_MODES, MERGE, TARGET_BYTES, TARGET_ROWS

# How many small segments make a medium one (a third of the target), and medium ones a big one.
MINOR = (4, 3)


@dataclass(frozen=True, slots=True)
class CompactRules:
    """The targets of a compaction.

    Attributes:
        mode: ``merge``, ``stitch`` or ``split``.
        target_rows: Most events of an output.
        target_bytes: Most encoded bytes of an output.
        minor: None takes every run within the targets. ``(small, medium)`` takes only runs whose
            size is at least twice their largest input and that have enough inputs: at least `small`
            of them if the run stays below a third of the target, else at least `medium`. So an
            event is rewritten a logarithmic number of times, however often compaction runs.
        budget_bytes: Most encoded bytes of all inputs together, newest runs first; None for no
            limit. No run is larger than that.
    """

    mode: str = MERGE
    target_rows: int = TARGET_ROWS
    target_bytes: int = TARGET_BYTES
    minor: tuple[int, int] | None = None
    budget_bytes: int | None = None

    def __post_init__(self) -> None:
        """Raise InvalidInputError if a target or threshold is out of range, or the mode unknown."""
        if self.mode not in COMPACT_MODES:
            raise InvalidInputError(
                "unknown compaction mode",
                remedy=f"use one of {', '.join(COMPACT_MODES)}",
                mode=self.mode,
            )
        check_whole("target_rows", self.target_rows, least=1)
        check_whole("target_bytes", self.target_bytes, least=1)
        check_whole("budget_bytes", self.budget_bytes, least=1, optional=True)
        if self.minor is not None:
            if not isinstance(self.minor, tuple | list) or len(self.minor) != len(MINOR):
                raise InvalidInputError(
                    "not a pair of thresholds",
                    remedy="give minor as two integers, such as (4, 3)",
                    minor=self.minor,
                )
            for threshold in self.minor:
                check_whole("minor", threshold, least=2)

    @property
    def most_bytes(self) -> int:
        """Most encoded bytes of one run."""
        return min(self.target_bytes, self.budget_bytes or self.target_bytes)
