"""The history as users see it: what each commit did, to which events, and who made it."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from segstore_ds.errors import InvalidInputError
from segstore_ds.format.operation import Operation
from segstore_ds.format.parts.kinds import HISTORY_SCHEMA
from segstore_ds.format.parts.rows import column_values
from segstore_ds.format.record import Row, from_json, parse_json
from segstore_ds.format.redactions import redactions_of
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext

HISTORY = pa.schema(
    [
        *HISTORY_SCHEMA,
        *(("start", pa.int64()), ("end", pa.int64())),
        *(("changed", pa.string()), ("reason", pa.string())),
    ]
)


def history_rows(
    context: StreamContext, root: Root, start: int = 0, end: int = 1 << 63
) -> Iterator[pa.RecordBatch]:
    """Yield what the commits of the versions ``[start, end)`` did, oldest first."""
    reasons = {f"redact:{each.redact_id}": each.reason for each in redactions_of(root).values()}
    head = 0  # of the version before
    for batch in context.log.history.batches(root, max(start - 1, 0), max(start, end)):
        versions, heads = (column_values(batch, name) for name in ("version", "head"))
        if not len(versions):
            continue
        before = np.concatenate([[head if versions[0] else heads[0]], heads[:-1]])
        head = int(heads[-1])
        told = batch["merged"].to_pylist()
        low, high = _affected(batch, before, told)
        columns = {name: batch[name] for name in batch.schema.names}
        columns |= {
            "merged": _texts(text if (text or "").startswith("[") else None for text in told),
            "start": pa.array(low, mask=low >= high),
            "end": pa.array(high, mask=low >= high),
            "changed": _texts(text if (text or "").startswith("{") else None for text in told),
            "reason": _texts(reasons.get(name) or None for name in batch["writer_id"].to_pylist()),
        }
        found = pa.RecordBatch.from_arrays([*columns.values()], schema=HISTORY)
        yield found.slice(int(np.searchsorted(versions, start)))


def _affected(batch: pa.RecordBatch, before: Any, told: list[str | None]) -> tuple[Any, Any]:
    """Return where the events begin and end that each commit added, dropped or replaced.

    `before` is the head before each commit: what a compaction replaces below it is no event.
    """
    head, tail, rows = (column_values(batch, name) for name in ("head", "tail", "rows"))
    none, most = np.iinfo(np.int64).max, np.int64(0)
    low = np.minimum(np.where(rows > 0, tail - rows, none), np.where(head > before, before, none))
    high = np.maximum(np.where(rows > 0, tail, most), np.where(head > before, head, most))
    for place, text in enumerate(told):
        for run in _runs(text) if text and text.startswith("[") else ():
            low[place] = min(low[place], max(run.start, before[place]))
            high[place] = max(high[place], run.end)
    return low, high


@dataclass(frozen=True, slots=True)
class _Run(Row):
    start: int
    end: int


def _runs(text: str) -> tuple[_Run, ...]:
    where = "what a row of the history replaced"
    return from_json(tuple[_Run, ...], parse_json(text.encode(), where=where), where=where)


def _texts(values: Iterator[str | None]) -> pa.Array:
    return pa.array(values, pa.string())


def pick_commits(
    operation: str | Collection[str] | None, client: str | None
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return what keeps the rows of some operations, whose client has a text."""
    asked = [operation] if isinstance(operation, str) else operation
    wanted = None if asked is None else {*asked}
    if unknown := (wanted or set()) - {each.value for each in Operation}:
        raise InvalidInputError(
            "no such operation",
            remedy=f"known: {', '.join(Operation)}",
            operation=sorted(map(str, unknown)),
        )

    def pick(batch: pa.RecordBatch) -> pa.RecordBatch:
        done, names = batch["operation"].to_pylist(), batch["client"].to_pylist()
        kept = [
            (wanted is None or what in wanted) and (client is None or client in name)
            for what, name in zip(done, names, strict=True)
        ]
        return batch if all(kept) else batch.filter(pa.array(kept, pa.bool_()))

    return pick
