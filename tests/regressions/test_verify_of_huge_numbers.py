"""`verify` listed every number between log_start and a version from storage, 10^17 of them."""

import uuid
from dataclasses import replace

import pyarrow as pa

from segstore_ds.format.envelope import encode_envelope
from segstore_ds.format.root import PartRef, encode_root
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on


def test_gap_in_the_log_is_reported_as_a_range() -> None:
    """A commit file far beyond the others is a gap of two ends, not of every number in it."""
    stream = create_on(open_storage(f"memory://{uuid.uuid4().hex}"), pa.schema([("n", pa.int64())]))
    root = stream._log.root
    path = f"status/{0:020d}-history-{'0' * 32}"
    part = PartRef(path, 0, 10**17, 10**17, 1, root.time_us, root.time_us)
    row = replace(root.history[0], version=10**17)
    far = replace(root, version=10**17, parent="x", history=(row,), history_parts=(part,))
    stream._log.storage.create(f"log/{10**17:020d}", encode_envelope(encode_root(far)))
    problems = stream.verify().problems
    assert [problem.where.rpartition("/")[2] for problem in problems] == [
        f"{1:020d}",
        *[path.rpartition("/")[2]] * 2,  # and its twin
    ]
    assert f"1 to {10**17 - 1}" in problems[0].what
