"""The actors of the soak that need no Spark, each a process: `python soak_actors.py ROLE PLAN`.

An actor goes on until the file `stop-ROLE` is there. What it must know after a kill lies in its
journal, a file that is replaced in one step. Errors that say so are tried again; any other ends it.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import segstore_ds as segstore
from segstore_ds.errors import CommitUnknownError

SCHEMA = pa.schema([("source", pa.string()), ("n", pa.int64()), ("text", pa.string())])
TEXT = "what an event says, " * 4
LOOK_EVERY_S = 0.2


class Plan:
    """What all actors know: where the stream is, and where their journals lie."""

    def __init__(self, role: str, path: str) -> None:
        self.role = role
        self.known: dict[str, Any] = json.loads(Path(path).read_text())
        self.folder = Path(path).parent

    def open(self) -> segstore.Stream:
        """Open the stream."""
        return segstore.open(self.known["url"], storage_options=self.known["options"])

    @property
    def ended(self) -> bool:
        """Whether the actor shall stop."""
        return (self.folder / f"stop-{self.role}").exists()

    def journal(self, empty: Any) -> Any:
        """Return what the role noted last."""
        path = self.folder / f"{self.role}.json"
        return json.loads(path.read_text()) if path.exists() else empty

    def note(self, what: Any) -> None:
        """Replace the role's journal."""
        path = self.folder / f"{self.role}.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps(what))
        part.replace(path)


def insist(work: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call until it works; an error that can't be tried again is the actor's end."""
    while True:
        try:
            return work(*args, **options)
        except segstore.SegstoreError as error:
            if not (error.retryable or isinstance(error, CommitUnknownError)):
                raise
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            time.sleep(LOOK_EVERY_S)


def write(plan: Plan) -> None:
    """Append batches of changing sizes; after a kill the last one comes again, before any end."""
    stream = insist(plan.open)
    while True:
        last = plan.ended
        batch, start = plan.journal([0, 0])
        end = start + (batch * 37) % 400 + 1
        numbers = pa.array(range(start, end), pa.int64())
        columns = [pa.array([plan.role] * (end - start)), numbers, pa.array([TEXT] * (end - start))]
        rows = pa.table(columns, schema=SCHEMA)
        insist(stream.append, rows, writer_id=plan.role, batch_id=batch)
        plan.note([batch + 1, end])
        if last:
            return
        time.sleep(LOOK_EVERY_S)


def read(stream: segstore.Stream, start: int, end: int) -> pa.Table:
    """Read whose events these are, and their numbers."""
    return stream.read(start, end, columns=["source", "n"]).read_all()


def follow(plan: Plan) -> None:
    """Read what is new, check that it follows on what was there, publish the position.

    Ends when it shall, and all is read.
    """
    stream = insist(plan.open)
    reader = insist(stream.readers.register, "soak", owner=plan.role, start="head")
    while True:
        last = plan.ended
        position, expected = plan.journal([0, {}])
        insist(stream.refresh)
        end = stream.tail
        table = insist(read, stream, position, end)
        assert table.num_rows == end - position, (table.num_rows, position, end)
        for event in table.to_pylist():
            wanted = expected.get(event["source"], 0)
            assert event["n"] == wanted, f"{event} where {wanted} was to come"
            expected[event["source"]] = wanted + 1
        plan.note([end, expected])
        insist(reader.publish, end)
        if last and end == stream.tail:
            return
        time.sleep(LOOK_EVERY_S)


def maintain(plan: Plan) -> None:
    """Compact, forget what was read and old versions, and delete, again and again."""
    stream = insist(plan.open)
    while not plan.ended:
        insist(stream.refresh)
        insist(stream.compact)
        insist(stream.retain, max_age="60s")
        insist(stream.maintain, keep="1h", grace="10m", short_grace=True)
        plan.note(plan.journal(0) + 1)
        for _ in range(25):
            if not plan.ended:
                time.sleep(LOOK_EVERY_S)


ROLES = {"writer-a": write, "writer-b": write, "reader": follow, "upkeep": maintain}


def main(role: str, path: str) -> None:
    """Play a role."""
    ROLES[role](Plan(role, path))


if __name__ == "__main__":
    main(*sys.argv[1:])
