"""Properties: named texts of a stream that tell every writer how to treat it."""

from collections.abc import Mapping
from dataclasses import replace

from segstore_ds.commit.commit import Committed, StreamLog
from segstore_ds.format.root import Root
from segstore_ds.log.transition import Slot


def run_set_properties(
    log: StreamLog, changes: Mapping[str, str | None], *, client: str
) -> Committed:
    """Set properties of a stream, or remove those whose value is None; safe to repeat."""
    log.refresh()

    def build(root: Root, _slot: Slot) -> Root | None:
        merged = {**root.properties, **changes}
        kept = {name: value for name, value in merged.items() if value is not None}
        if kept == dict(root.properties):
            return None
        return replace(root, properties=kept, operation="set-properties", client=client)

    return log.commit(build, transaction=log.clock.new_id())
