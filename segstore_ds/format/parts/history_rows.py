"""History rows as stored in a root (FORMAT.md 5.3)."""

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from segstore_ds.format.fields import parse_cells

_TEXT_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """What one commit did and what it cost.

    Attributes:
        version: The version that it committed.
        time_us: Its commit time.
        operation: The name of the operation.
        head: The stream's head after the commit.
        tail: The stream's tail after the commit.
        rows: Events added.
        segments: Segments added.
        bytes: Encoded bytes of these segments.
        writer_id: The idempotent writer, or None.
        batch_id: The batch of that writer, or None.
        client: The software that committed.
        application: The application in which it ran, or "".
        attempts: How often the change was planned, including the last time.
        races_lost: How often another commit came first.
        requests: Storage requests of the commit, without staging.
        request_bytes: Bytes that these wrote, without the commit file.
        transaction: The id of the commit; "" where it is not known.
    """

    version: int
    time_us: int
    operation: str
    head: int
    tail: int
    rows: int = 0
    segments: int = 0
    bytes: int = 0
    writer_id: str | None = None
    batch_id: int | None = None
    client: str = ""
    application: str = ""
    attempts: int = 1
    races_lost: int = 0
    requests: int = 0
    request_bytes: int = 0
    transaction: str = ""


_FIELDS = tuple(field.name for field in fields(HistoryRow))
_cells = attrgetter(*_FIELDS)
TEXTS = ("operation", "writer_id", "client", "application", "transaction")
_NUMBERS = tuple(name for name in _FIELDS if name not in (*TEXTS, "batch_id", "time_us"))


def row_value(row: HistoryRow) -> list[Any]:
    """Return the JSON row of a history row."""
    return list(_cells(row))


def parse_row(value: Any, *, where: str) -> HistoryRow:
    """Parse the JSON row of a history row."""
    taken = parse_cells(value, _FIELDS, where=where)
    found: dict[str, Any] = {name: taken.integer(name) for name in _NUMBERS}
    for name in ("operation", "client", "application", "transaction"):
        found[name] = taken.text(name, limit=_TEXT_LIMIT)
    found["writer_id"] = taken.optional_text("writer_id", limit=_TEXT_LIMIT)
    found["time_us"] = taken.time_us("time_us")
    return HistoryRow(**found, batch_id=taken.optional_integer("batch_id"))
