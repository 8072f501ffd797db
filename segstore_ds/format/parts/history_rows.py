"""History rows as stored in a root, and references to older rows (FORMAT.md 5.4)."""

from dataclasses import dataclass, fields
from typing import Any

from segstore_ds.errors import CorruptionError
from segstore_ds.format import names
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
TEXTS = ("operation", "writer_id", "client", "application", "transaction")
_NUMBERS = tuple(name for name in _FIELDS if name not in (*TEXTS, "batch_id"))


@dataclass(frozen=True, slots=True)
class HistoryPart:
    """A history part, or a list of parts, for the versions ``[start, end)``.

    `time_us` and `last_us` are the commit times of its first and its last version.
    """

    path: str
    start: int
    end: int
    time_us: int
    last_us: int
    bytes: int
    digest: str

    @property
    def size(self) -> int:
        """The number of versions it lists."""
        return self.end - self.start


def row_value(row: HistoryRow) -> list[Any]:
    """Return the JSON row of a history row."""
    return [getattr(row, name) for name in _FIELDS]


def parse_row(value: Any, *, where: str) -> HistoryRow:
    """Parse the JSON row of a history row."""
    taken = parse_cells(value, _FIELDS, where=where)
    found: dict[str, Any] = {name: taken.integer(name) for name in _NUMBERS}
    for name in ("operation", "client", "application", "transaction"):
        found[name] = taken.text(name, limit=_TEXT_LIMIT)
    found["writer_id"] = taken.optional_text("writer_id", limit=_TEXT_LIMIT)
    return HistoryRow(**found, batch_id=taken.optional_integer("batch_id"))


def part_ref_value(part: HistoryPart) -> list[Any]:
    """Return the JSON row of a reference to a history part."""
    return [getattr(part, field.name) for field in fields(part)]


def parse_part_ref(value: Any, *, where: str) -> HistoryPart:
    """Parse the JSON row of a reference to a history part."""
    columns = [field.name for field in fields(HistoryPart)]
    row = parse_cells(value, columns, where=where)
    path = names.check_status_path(row.text("path", limit=300), where=where)
    digest = row.text("digest", limit=32)
    numbers = {name: row.integer(name) for name in columns if name not in ("path", "digest")}
    part = HistoryPart(path=path, digest=digest, **numbers)
    if part.start >= part.end or part.time_us > part.last_us:
        raise CorruptionError("part of the history has no range", where=where, path=path)
    return part
