"""One line for each commit, at DEBUG: `name=value` with values as JSON, and the same as fields."""

import json
import logging
from dataclasses import asdict

from segstore_ds.format.parts.history_rows import HistoryRow

_LOG = logging.getLogger(__name__)


def log_commit(url: str, row: HistoryRow) -> None:
    """Log what a commit did and cost; a formatter finds the fields in the record's `segstore`."""
    if _LOG.isEnabledFor(logging.DEBUG):
        fields = {"url": url, **asdict(row)}
        known = {name: value for name, value in fields.items() if value not in (None, "")}
        text = " ".join(f"{name}={json.dumps(value)}" for name, value in known.items())
        _LOG.debug("commit %s", text, extra={"segstore": known})
