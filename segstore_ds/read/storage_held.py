"""The metadata table `storage`: what takes storage in a stream's folder, why, and until when.

Metadata knows the sizes of what it lists only, so this table lists the folder.
"""

from collections import defaultdict
from contextlib import suppress
from typing import Any

import pyarrow as pa

from segstore_ds.errors import SnapshotExpiredError
from segstore_ds.format import names
from segstore_ds.format.policies import DEFAULT_POLICY, upkeep_of
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.read.table_columns import ints, texts, times
from segstore_ds.status.deletable import find_deletable, plan_horizon
from segstore_ds.status.references import list_objects, read_references

STORAGE_SCHEMA = pa.schema([*texts("why"), *ints("objects", "bytes"), *times("since", "until")])
LISTED, LOG = "listed", "commits"
_Held = tuple[int, int | None, int | None]  # an object's bytes, and since and until when it stays


def storage_rows(context: StreamContext, root: Root) -> list[dict[str, Any]]:
    """Return the rows of the table, the largest first, from one listing of the stream's folder."""
    policy = upkeep_of(root) or DEFAULT_POLICY
    keep_us, grace_us = policy.keep_s * 1_000_000, policy.grace_s * 1_000_000
    # Parts that were retired may be deleted at any moment, together with their segments.
    refs = read_references(context.status, root, gone_before=root.version, gone_until_us=1 << 62)
    versions = {retired.version for retired in refs.retired.values()}
    operations = context.log.history.operations(root, versions)
    horizon = plan_horizon(root, floor=0, until_us=context.clock.wall_us() - grace_us)
    objects = [*list_objects(context.storage)]
    found: dict[str, list[_Held]] = defaultdict(list)
    found[LISTED] = [(info.size, None, None) for info in objects if info.path in refs.live]
    for each in find_deletable(refs, horizon, objects, operations):
        info, retired = each.info, each.retired
        if retired is None:
            # The floor passes it a grace later, and a sweep follows another grace behind.
            until_us = info.modified_us + 2 * grace_us if names.is_object(info.path) else None
            found[each.why].append((info.size, info.modified_us, until_us))
        elif horizon.pin and horizon.is_pinned(retired):
            held = (info.size, retired.time_us, None)
            found[f"needed by the clone {horizon.pin[1]}"].append(held)
        else:
            until_us = retired.time_us + max(grace_us, keep_us)
            found[each.why].append((info.size, retired.time_us, until_us))
    oldest = None
    with suppress(SnapshotExpiredError):
        oldest = context.log.history.moment(root, root.log_start)
    since = oldest.time_us if oldest else None
    until = root.time_us + max(keep_us, int(context.log.grace_s * 1e6))
    found[LOG] = [
        (info.size, since, until)
        for info in context.storage.list(names.LOG_FOLDER)
        if names.parse_log_name(info.path.rpartition("/")[2]) is not None
    ]
    rows = [_row(why, held) for why, held in found.items() if held]
    return sorted(rows, key=lambda row: (-row["bytes"], row["why"]))


def _row(why: str, held: list[_Held]) -> dict[str, Any]:
    since = [since_us for _, since_us, _ in held if since_us is not None]
    until = [until_us for _, _, until_us in held if until_us is not None]
    size = sum(size for size, _, _ in held)
    times = {"since": min(since, default=None), "until": max(until, default=None)}
    return {"why": why, "objects": len(held), "bytes": size, **times}
