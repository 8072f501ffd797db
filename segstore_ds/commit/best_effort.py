"""Upkeep after a commit: whatever fails in it, the commit stands."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from segstore_ds.errors import SegstoreError

_LOG = logging.getLogger(__name__)


@contextmanager
def putting_off(what: str) -> Iterator[None]:
    """Do upkeep that a failure puts off until the next commit.

    Its caller has been told nothing yet of a commit that is in the log. Were it to hear of an error
    now, of whatever kind, it would commit the same events again. So this is the one boundary that
    every exception ends at; what is none of our errors is a defect, and logged with its traceback.
    What asks the process to end (KeyboardInterrupt, SystemExit) is no Exception and goes on.

    Args:
        what: For the log.
    """
    try:
        yield
    except (SegstoreError, MemoryError) as error:
        _LOG.warning("%s was put off: %s", what, error)
    except Exception:  # noqa: BLE001 - the boundary that is meant
        _LOG.exception("%s was put off by a defect: report it", what)
