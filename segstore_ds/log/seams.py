"""The seams of a commit: where other rooms take part in the commits of every stream.

A room puts a factory into `SEAMS` when its module is imported; each handle's log makes its own
seams. All of them run in the order of the list, and each may raise to refuse.
"""

from collections.abc import Callable, Mapping

from segstore_ds.format.root import Root
from segstore_ds.log.clock import Clock
from segstore_ds.log.metadata_log import MetadataLog


class Seam:
    """A room's part in the commits of one stream."""

    def before_staging(self, root: Root) -> None:
        """Run before anything is staged for a commit on a root."""

    def before_put(self, base: Root, planned: Root, shipped: Mapping[str, frozenset[str]]) -> None:
        """Run on each attempt, before its root is put: what it refers to must be durable."""

    def before_ack(self, root: Root) -> None:
        """Run when a root is in the log, before its commit is acknowledged, perhaps once more."""


SEAMS: list[Callable[[MetadataLog[Root], Clock], Seam]] = []
