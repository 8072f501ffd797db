"""All that runs after a write was acknowledged, in order. None of it can fail the write.

The hint is not in this list: the log writes it with every commit, whoever made that.
"""

from collections.abc import Callable

from segstore_ds.compact.auto import run_auto_compact
from segstore_ds.compact.merges import run_due_merge
from segstore_ds.log.context import StreamContext
from segstore_ds.log.seams import best_effort
from segstore_ds.publish.auto import may_auto_publish, run_auto_publish
from segstore_ds.retention.retain import AutoRetain
from segstore_ds.retention.upkeep import UPKEEP, AutoUpkeep, Round
from segstore_ds.write.request import AutoRules

_PUBLISHING = Round("publishing", may_auto_publish, lambda own, _: run_auto_publish(own))


class AfterCommit:
    """Runs one handle's work after its writes."""

    def __init__(self, context: StreamContext) -> None:
        self._context = context
        self._retain = AutoRetain(context)
        self._upkeep = AutoUpkeep(context, (UPKEEP, _PUBLISHING))

    def run(self, compact: AutoRules | None) -> None:
        """Run each step that is due; a step that fails is logged and the next one runs."""
        context = self._context
        steps: tuple[tuple[str, Callable[[], object]], ...] = (
            ("merging status parts", lambda: run_due_merge(context)),
            ("compaction", lambda: None if compact is None else run_auto_compact(context, compact)),
            ("retention", self._retain.apply_if_due),
        )
        for what, step in steps:
            with best_effort(what):
                step()
        self.keep_up()

    def keep_up(self) -> None:
        """Start upkeep and publishing if they are due; nobody waits for them."""
        with best_effort("upkeep"):
            self._upkeep.start_if_due()
