"""Which epoch bytes are of, by the fingerprint of their schema; and schemas out of segments."""

from segstore_ds.engine.epochs import epoch_schema
from segstore_ds.engine.table_status import TableStatus
from segstore_ds.errors import FormatError
from segstore_ds.format.root import Root
from segstore_ds.format.schema import fingerprint


def epochs_by_fingerprint(status: TableStatus, root: Root) -> dict[str, int]:
    """Return the newest epoch of each schema that can be read."""
    found: dict[str, int] = {}
    for epoch in root.epochs:
        try:
            found[fingerprint(epoch_schema(status, epoch))] = epoch.number
        except FormatError:
            continue
    return found
