"""The appender: takes events one by one, over a long time, and reads uncommitted ones back."""

from dataclasses import replace

from segstore_ds import options
from segstore_ds.commit.commit import StreamLog
from segstore_ds.options.arguments import check_seconds, check_whole
from segstore_ds.stream.reading import Reads
from segstore_ds.stream.writing import Writes
from segstore_ds.write.appender import FlushLimits, LiveAppender, StreamEnds
from segstore_ds.write.layout import as_layout
from segstore_ds.write.task_writer import Layout


class Appending(Writes, Reads):
    """The part of a stream that opens appenders."""

    def appender(
        self,
        *,
        flush_bytes: int = options.FLUSH_BYTES,
        flush_rows: int = options.FLUSH_ROWS,
        flush_seconds: float | None = options.FLUSH_SECONDS,
        merge_schema: bool = False,
        layout: Layout | None = None,
    ) -> LiveAppender:
        """Open a long-lived appender that takes events one by one and reads its own back.

        It works on a handle of its own, and several threads may use it. Use it in a `with` block,
        which flushes at the end.

        Args:
            flush_bytes: Flush when this many bytes, before compression, are not flushed.
            flush_rows: Flush when this many events are not flushed.
            flush_seconds: Flush when an event has waited this many seconds; None for never.
            merge_schema: Go on if others add columns: they are null in events from here.
            layout: Sizes and compression.

        Returns:
            The appender. Its flushes commit like `append`, one commit each.

        Raises:
            InvalidInputError: A limit is not positive.
            FormatError: The stream's schema can't be read.
            StorageError: The storage failed.
        """
        flush_bytes = check_whole("flush_bytes", flush_bytes, least=1)
        flush_rows = check_whole("flush_rows", flush_rows, least=1)
        if flush_seconds is not None:
            check_seconds("flush_seconds", flush_seconds, positive=True)
        layout = as_layout(layout)
        log = StreamLog(self._log.storage, clock=self._log.clock)
        log.adopt(self._log.root)
        own = type(self)(replace(self._context.fresh(), log=log))
        schema = self.schema
        ends = StreamEnds(
            schema=schema,
            plan=lambda: own.plan_write(schema, merge_schema=merge_schema, layout=layout),
            commit=lambda job, task: own.commit(job, [task], keep_staged=True),
            read=own.read,
        )
        return LiveAppender(ends, FlushLimits(flush_bytes, flush_rows, flush_seconds), log.clock)
