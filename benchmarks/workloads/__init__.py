"""The workloads by name."""

from benchmarks.workload import Workload
from benchmarks.workloads import (
    append_latency,
    appender_events,
    bulk_append,
    bulk_scan,
    commit_rate,
    compaction,
    copying,
    delta_lake,
    event_copy,
    hybrid_scan,
    micro_batches,
    python_rivals,
    segment_formats,
    stream_source,
    table_status,
    table_status_rivals,
    task_memory,
    write_cache,
)

WORKLOADS: dict[str, Workload] = {
    **bulk_append.WORKLOADS,
    **bulk_scan.WORKLOADS,
    **append_latency.WORKLOADS,
    **commit_rate.WORKLOADS,
    **compaction.WORKLOADS,
    **copying.WORKLOADS,
    **event_copy.WORKLOADS,
    **table_status.WORKLOADS,
    **table_status_rivals.WORKLOADS,
    **task_memory.WORKLOADS,
    **micro_batches.WORKLOADS,
    **delta_lake.WORKLOADS,
    **hybrid_scan.WORKLOADS,
    **python_rivals.WORKLOADS,
    **segment_formats.WORKLOADS,
    **stream_source.WORKLOADS,
    **write_cache.WORKLOADS,
    **appender_events.WORKLOADS,
}
