"""Properties: named texts of a stream that tell every writer how to treat it."""

from collections.abc import Mapping
from dataclasses import replace

from segstore_ds.format.operation import Operation
from segstore_ds.format.root import Root
from segstore_ds.log.commit import NOTHING, Change, Committed
from segstore_ds.log.context import StreamContext
from segstore_ds.status.slot import Slot


def run_set_properties(
    context: StreamContext, changes: Mapping[str, str | None]
) -> Committed[None]:
    """Set properties of a stream, or remove those whose value is None; safe to repeat."""
    context.log.refresh()

    def build(root: Root, _slot: Slot) -> Change[None]:
        merged = {**root.properties, **changes}
        kept = {name: value for name, value in merged.items() if value is not None}
        if kept == dict(root.properties):
            return NOTHING
        return Change(
            replace(
                root, properties=kept, operation=Operation.SET_PROPERTIES, client=context.client
            )
        )

    return context.log.commit(build)
