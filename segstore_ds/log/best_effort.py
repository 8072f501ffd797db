"""Best-effort work after a commit: its failure does not affect the commit."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from segstore_ds.errors import SegstoreError

_LOG = logging.getLogger(__name__)


@contextmanager
def best_effort(what: str) -> Iterator[None]:
    """Run the upkeep named `what` after a commit and log its failure instead of raising it.

    The commit is already durable; raising here would make callers retry it. So this boundary
    catches every Exception. An error outside our tree is a defect and is logged with its traceback.
    KeyboardInterrupt and SystemExit are not Exceptions and pass through.
    """
    try:
        yield
    except (SegstoreError, MemoryError) as error:
        _LOG.warning("%s failed and was skipped: %s", what, error)
    except Exception:  # noqa: BLE001 - see above
        _LOG.exception("%s failed and was skipped; this is a bug, please report it", what)
