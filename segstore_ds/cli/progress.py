"""Progress bars with rates, on stderr and only on a terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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
