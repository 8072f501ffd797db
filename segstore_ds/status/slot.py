"""The place of a change in the log, as planned."""

from dataclasses import dataclass

from segstore_ds.format.root import Retired


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a change will land: its version, its commit time, and how many races it has lost."""

    version: int
    time_us: int
    attempt: int

    def retire(self, kind: str, path: str) -> Retired:
        """Return the record that the change drops an object."""
        return Retired(kind, path, self.version, self.time_us)
