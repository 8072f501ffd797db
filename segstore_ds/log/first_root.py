"""The root of a stream's first commit."""

from collections.abc import Sequence

from segstore_ds.format.operation import Operation
from segstore_ds.format.root import Epoch, Root
from segstore_ds.log.context import StreamContext


def first_root(
    context: StreamContext,
    operation: Operation,
    epochs: Sequence[Epoch],
    *,
    stream_id: str | None = None,
) -> Root:
    """Return the first root of a new stream, without events and without its row of history."""
    return Root(
        stream_id=stream_id or context.clock.new_id(),
        version=0,
        transaction=context.clock.new_id(),
        parent="",
        time_us=context.clock.wall_us(),
        operation=operation,
        epochs=tuple(epochs),
        client=context.client,
    )
