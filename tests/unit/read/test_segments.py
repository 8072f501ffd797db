"""Segments: adjacent byte ranges are fetched together."""

from segstore_ds.read.segments import plan_runs


def test_frames_side_by_side_are_fetched_together():
    spans = [(n, (64 * n, 64 * n + 64)) for n in range(10)]
    assert [len(run) for run in plan_runs(spans, 64 * 4)] == [4, 4, 2]
    assert [len(run) for run in plan_runs(spans, 1)] == [1] * 10
    apart = [*spans[:3], *spans[5:]]
    assert [len(run) for run in plan_runs(apart, 1 << 20, gap_bytes=127)] == [3, 5]
    assert [len(run) for run in plan_runs(apart, 1 << 20, gap_bytes=128)] == [8]
    assert list(plan_runs([], 1)) == []
