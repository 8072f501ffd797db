"""The only door for a connector: what `spark/` needs below the front door, and nothing else.

`Stream` serves people. A connector plans in one process, runs tasks in others and commits in a
third, so it also needs the values that travel between them. This module re-exports them under the
names that they have in their own packages.
"""

from segstore_ds.commit.commit import StreamLog
from segstore_ds.commit.context import StreamContext
from segstore_ds.compact.replace import Replacement
from segstore_ds.compact.rewrite import CompactJob, plan_range_groups, run_group
from segstore_ds.compact.rewrite import plan_job as plan_compaction
from segstore_ds.compact.rows import PLAN_SCHEMA, build_row, parse_row
from segstore_ds.copy.event_rows import ROWS, RowsCopy, commit_rows_copy, plan_rows_copy
from segstore_ds.copy.events import copied_of, find_copy
from segstore_ds.copy.segment_tasks import CopyJob, commit_segments, copy_segments, plan_copy_job
from segstore_ds.copy.segments import Copied, CopyRequest, find_done
from segstore_ds.format.batch_fingerprint import BatchTally, gather_facts
from segstore_ds.format.copies import CopyRecord
from segstore_ds.format.envelope import decode_envelope, encode_envelope
from segstore_ds.format.names import check_label, segment_object
from segstore_ds.format.root import Root
from segstore_ds.format.root_codec import decode_root, encode_root
from segstore_ds.format.segment import PARQUET
from segstore_ds.log.origins import origins_of
from segstore_ds.read.cuts import (
    Cut,
    Position,
    check_held,
    check_position,
    check_range,
    parse_cut,
    resolve_cut,
    take_range,
)
from segstore_ds.read.filter_literals import NAN
from segstore_ds.read.filters import Condition, Filters
from segstore_ds.read.metadata_tables import METADATA_TABLES, find_table
from segstore_ds.read.micro_batch import BatchLimits, plan_batch_end
from segstore_ds.read.plan import Reading, ReadTask
from segstore_ds.read.scan import run_task
from segstore_ds.retention.readers import NamedReader, register_reader
from segstore_ds.status.slices import Slice
from segstore_ds.status.table_status import PlacedSegment, TableStatus
from segstore_ds.status.writers import WriterKey, find_repeated
from segstore_ds.storage import Storage, open_storage, resolve_location
from segstore_ds.storage.locations import Location
from segstore_ds.stream import Stream, client_name, create_on, open_on
from segstore_ds.stream.handle import context_of
from segstore_ds.write.append import check_stream
from segstore_ds.write.inputs import writer_key
from segstore_ds.write.job import AutoRules, WriteJob, WriteRequest, check_arguments
from segstore_ds.write.task_writer import Layout, StagedTask, delete_staged

__all__ = [
    "METADATA_TABLES",
    "NAN",
    "PARQUET",
    "PLAN_SCHEMA",
    "ROWS",
    "AutoRules",
    "BatchLimits",
    "BatchTally",
    "CompactJob",
    "Condition",
    "Copied",
    "CopyJob",
    "CopyRecord",
    "CopyRequest",
    "Cut",
    "Filters",
    "Layout",
    "Location",
    "NamedReader",
    "PlacedSegment",
    "Position",
    "ReadTask",
    "Reading",
    "Replacement",
    "Root",
    "RowsCopy",
    "Slice",
    "StagedTask",
    "Storage",
    "Stream",
    "StreamContext",
    "StreamLog",
    "TableStatus",
    "WriteJob",
    "WriteRequest",
    "WriterKey",
    "build_row",
    "check_arguments",
    "check_held",
    "check_label",
    "check_position",
    "check_range",
    "check_stream",
    "client_name",
    "commit_rows_copy",
    "commit_segments",
    "context_of",
    "copied_of",
    "copy_segments",
    "create_on",
    "decode_envelope",
    "decode_root",
    "delete_staged",
    "encode_envelope",
    "encode_root",
    "find_copy",
    "find_done",
    "find_repeated",
    "find_table",
    "gather_facts",
    "open_on",
    "open_storage",
    "origins_of",
    "parse_cut",
    "parse_row",
    "plan_batch_end",
    "plan_compaction",
    "plan_copy_job",
    "plan_range_groups",
    "plan_rows_copy",
    "register_reader",
    "resolve_cut",
    "resolve_location",
    "run_group",
    "run_task",
    "segment_object",
    "take_range",
    "writer_key",
]
