"""Takes redacted values out of published tables: metadata with bounds, own files with events.

The table is published again first, so that its readers see the redacted events and its metadata
names nothing older. What it named before goes after the grace of its readers.
"""

from collections.abc import Callable, Iterator

from segstore_ds.compact.redacted import AGAIN, Left
from segstore_ds.errors import CorruptionError, InvalidInputError
from segstore_ds.format import names
from segstore_ds.format.redactions import Redaction
from segstore_ds.log.context import StreamContext
from segstore_ds.publish.delta import forget_delta
from segstore_ds.publish.folders import list_table
from segstore_ds.publish.iceberg import forget_iceberg
from segstore_ds.publish.life_cycle import Erasure, Remains
from segstore_ds.read.reader_records import store_now_us

_Forget = Callable[[StreamContext, Erasure], Remains]
_TABLES: tuple[tuple[str, str, _Forget], ...] = (
    ("delta", names.DELTA_FOLDER, forget_delta),
    ("iceberg", names.ICEBERG_FOLDER, forget_iceberg),
)


def forget_tables(
    context: StreamContext, record: Redaction, grace_s: float
) -> Iterator[tuple[Left, int]]:
    """Delete what may hold redacted values in a stream's tables, as far as that may go now.

    Yields what is left and when the same call can end it, in microseconds; 0 if it can't.

    Raises:
        ConflictError: Other publishers came first every time.
    """
    url = context.storage.url
    grace_s = max(grace_s, context.log.grace_s)
    for kind, folder, forget in _TABLES:
        if not any(names.is_published(info.path) for info in list_table(context.storage, folder)):
            continue
        now_us = store_now_us(context)
        try:
            found = forget(context, Erasure(record.version, record.time_us, now_us, grace_s))
        except (CorruptionError, InvalidInputError) as error:
            call = f"unpublish_{kind}(), then publish_{kind}() again"
            yield Left(url, f"the published {kind} table", str(error), call), 0
            continue
        if found.count:
            what = f"metadata and files of the published {kind} table: {found.count}"
            why = "for the table's readers until the grace is over"
            yield Left(url, what, why, AGAIN), found.due_us
