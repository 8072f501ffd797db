"""A merge never passes `target_bytes`, although another encoding may take more than its inputs."""

import numpy as np
import pyarrow as pa
import pytest

import segstore_ds as segstore


def segments(stream: segstore.Stream) -> list[dict]:
    """Return the stream's segments."""
    return pa.table(stream.segments()).to_pylist()


@pytest.mark.parametrize(
    ("layout", "made"),
    [
        (segstore.Layout(frame_rows=5000), ["parquet", "parquet"]),  # cut between two frames
        (segstore.Layout(), ["arrow"]),  # one frame, which only Arrow keeps within the target
        (segstore.Layout(compression="none"), ["arrow"] * 4),  # no format does: left alone
    ],
)
def test_the_result_is_within_the_target(layout, made):
    """Split, in the other format, or left; a second call changes nothing."""
    random = np.random.default_rng(1)
    stream = segstore.create("memory://merged", pa.schema([("f", pa.float64())]))
    arrow = segstore.Layout(inline_bytes=0, segment_format="arrow")
    for _ in range(4):  # doubles, of which Parquet makes more bytes
        stream.append(pa.table({"f": random.random(10_000)}), layout=arrow)
    before, target = stream.read().read_all(), sum(one["bytes"] for one in segments(stream))
    objects = len(list(stream._log.storage.list("segments")))
    done = stream.compact(target_bytes=target, layout=layout)
    found = segments(stream)
    assert [one["format"] for one in found] == made
    assert max(one["bytes"] for one in found) <= target
    assert done.skipped == (len(found) == 4)
    assert stream.compact(target_bytes=target, layout=layout).commits == 0
    assert stream.read().read_all() == before
    assert len(list(stream._log.storage.list("segments"))) == objects + len(made) % 4
    stream.verify().check()
