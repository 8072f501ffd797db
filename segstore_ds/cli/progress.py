"""Progress bars with rates, on stderr and only on a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def shown(verb: str, unit: str = "events") -> Iterator[Callable[[int, int], None]]:
    """Yield a callback for `progress=`, which draws a bar on stderr."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()),
        *(TextColumn(unit), TaskProgressColumn(show_speed=True), TimeRemainingColumn()),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(verb, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def counted(rows: Any, verb: str) -> Iterator[Any]:
    """Yield a reader of the same batches; a line on stderr counts the events that went by."""
    if not sys.stderr.isatty():
        yield rows
        return
    import pyarrow as pa
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(verb)

        def batches() -> Iterator[pa.RecordBatch]:
            done = 0
            for batch in rows:
                yield batch
                done += batch.num_rows
                rate = done / max(progress.tasks[0].elapsed or 0.0, 1e-3)
                text = f"{verb} {done:,} events, {rate:,.0f}/s"
                progress.update(task, description=text)

        yield pa.RecordBatchReader.from_batches(rows.schema, batches())
