"""Jobs of helpers: what is small needs no session to run in."""

import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.spark import jobs
from segstore_ds.spark.parquet_scan import read as hybrid
from segstore_ds.storage import open_storage


class NoSession:
    """Where a session would start a job."""

    def range(self, *_: int) -> None:
        raise RuntimeError("a job")


@pytest.mark.parametrize("bound", [0, 16 << 20])
def test_small_jobs_start_none(tmp_path, monkeypatch, bound: int) -> None:
    """Every helper names the bytes that it is about to read."""
    monkeypatch.setattr(hybrid, "MOST_BYTES", bound)
    monkeypatch.setattr(jobs, "_client", lambda _: "test")
    monkeypatch.setattr(jobs, "_storage", lambda _, url, **given: open_storage(url, **given))
    url, spark = tmp_path / "s", NoSession()
    stream = segstore.create(url, pa.schema([("n", pa.int64())]))
    for n in range(4):
        stream.append(pa.table({"n": [n]}))
    actions = (
        lambda: jobs.copy(spark, url, tmp_path / "segments", "c").end,
        lambda: jobs.copy(spark, url, tmp_path / "events", "c", mode="events").end,
        lambda: jobs.open(spark, url).redact([["n", "<", 2]], columns=["n"]).rows,
        lambda: jobs.open(spark, url).compact().segments_before,
    )
    for action, done in zip(actions, (4, 4, 2, 4), strict=True):
        if bound:
            assert action() == done
        else:
            with pytest.raises(RuntimeError, match="a job"):
                action()
    stream.refresh().verify().check()
