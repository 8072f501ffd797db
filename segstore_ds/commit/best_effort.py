"""Best-effort work after a commit: whatever fails in it, the commit stands."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from segstore_ds.errors import SegstoreError

_LOG = logging.getLogger(__name__)


@contextmanager
def best_effort(what: str) -> Iterator[None]:
    """Run upkeep after a commit and log its failure instead of raising it.

    The commit is already durable; raising here would make callers retry it. So this boundary takes
    every exception. An error that is not ours is a defect and is logged with its traceback.
    KeyboardInterrupt and SystemExit are no Exception and pass.

    Args:
        what: The work's name in the log.
    """
    try:
        yield
    except (SegstoreError, MemoryError) as error:
        _LOG.warning("%s failed and was skipped: %s", what, error)
    except Exception:  # noqa: BLE001 - see above
        _LOG.exception("%s failed and was skipped; this is a defect, report it", what)
