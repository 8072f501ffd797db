"""Progress with rates, on stderr and only on a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def shown(verb: str, unit: str = "events") -> Iterator[Callable[[int, int | None], None]]:
    """Yield a callback for `progress=`, which draws a bar on stderr."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (
        *(bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn()),
        *(bars.TextColumn(unit), bars.TaskProgressColumn(show_speed=True)),
        bars.TimeRemainingColumn(elapsed_when_finished=True),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(verb, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def counted(rows: Any, verb: str) -> Iterator[Any]:
    """Yield a reader of the same batches, which shows how many events went by."""
    if not sys.stderr.isatty():
        yield rows
        return
    import pyarrow as pa

    with shown(verb) as progress:

        def batches() -> Iterator[pa.RecordBatch]:
            done = 0
            for batch in rows:
                yield batch
                done += batch.num_rows
                progress(done, None)

        yield pa.RecordBatchReader.from_batches(rows.schema, batches())
