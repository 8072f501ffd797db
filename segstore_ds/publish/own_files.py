"""Files of a table's own: events that another engine can't read from the stream's segments."""

from dataclasses import replace

import pyarrow as pa

from segstore_ds.compact.rewrite import join_small
from segstore_ds.format.parquet.writer import ParquetEncoder
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.publish.snapshot import File
from segstore_ds.read.plan import plan_range, plan_tasks
from segstore_ds.read.request import plan_reading
from segstore_ds.read.scan import open_reader
from segstore_ds.write.layout import Layout

_FRAME_ROWS = 65_536


def write_own_file(
    context: StreamContext, root: Root, wanted: File, columns: tuple[str, ...]
) -> File:
    """Write the events of a wanted file in the newest schema, under stored names; return it.

    Nothing lists the file yet. Its name is unique, so no other publisher's file is touched.
    """
    span = (wanted.start, wanted.end)
    called = [root.epoch.names.get(stored) or stored for stored in columns]
    reading = plan_reading(context, root, *span, columns=called, read_cache_bytes=0)
    schema = reading.as_stored(reading.result_schema)
    slices = plan_range(context.status, root, reading)
    tasks = plan_tasks(slices, partition_bytes=Layout().segment_bytes)
    path = f"{wanted.key}-{context.clock.new_id()[:12]}.parquet"
    layout = Layout()
    encoder: ParquetEncoder = layout.parquet_encoder(schema, ())
    with context.storage.open_staged(path) as file:
        file.write(encoder.start())
        for frame in join_small(open_reader(reading, tasks), _FRAME_ROWS):
            stored = pa.RecordBatch.from_arrays(frame.columns, schema=schema)
            file.write_all(encoder.add(stored)[0])
        file.write(encoder.finish()[0])
        return replace(wanted, path=path, bytes=file.commit())
