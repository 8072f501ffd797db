"""History rows as stored in a root (FORMAT.md 5.3)."""

from dataclasses import dataclass
from typing import Annotated

from segstore_ds.format.record import Limit, Row, TimeUs

_Text = Annotated[str, Limit(1000)]
TEXTS = ("operation", "writer_id", "client", "application", "transaction")


@dataclass(frozen=True, slots=True)
class HistoryRow(Row):
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
    time_us: TimeUs
    operation: _Text
    head: int
    tail: int
    rows: int = 0
    segments: int = 0
    bytes: int = 0
    writer_id: _Text | None = None
    batch_id: int | None = None
    client: _Text = ""
    application: _Text = ""
    attempts: int = 1
    races_lost: int = 0
    requests: int = 0
    request_bytes: int = 0
    transaction: _Text = ""
