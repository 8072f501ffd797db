"""The memory of decoded rows."""

from types import SimpleNamespace

import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.format.rows import rows_pool

ROWS = pa.table({"n": range(200_000), "name": [f"user-{n % 9999}" for n in range(200_000)]})


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_all_of_a_scan_lies_in_the_pool_for_rows(tmp_path, form):
    stream = segstore.create(tmp_path / "s", ROWS.schema)
    stream.append(ROWS, layout=segstore.Layout(segment_format=form))
    before = rows_pool().bytes_allocated()
    held = stream.read().read_all()
    assert held.equals(ROWS)
    taken = rows_pool().bytes_allocated() - before
    assert taken >= held.nbytes
    del held
    assert rows_pool().bytes_allocated() == before


@pytest.mark.parametrize("backend", ["system", "jemalloc", "mimalloc"])
def test_a_pool_that_was_chosen_stays(backend, monkeypatch):
    """Arrow takes mimalloc where nothing was chosen."""
    chosen = SimpleNamespace(backend_name=backend)
    rows_pool.cache_clear()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(pa, "default_memory_pool", lambda: chosen)
            patch.setattr(pa, "jemalloc_memory_pool", lambda: "jemalloc")
            assert (rows_pool() == "jemalloc") == (backend == "mimalloc")
    finally:
        rows_pool.cache_clear()


def test_without_jemalloc_there_is_arrows_own_choice(monkeypatch):
    def missing():
        raise NotImplementedError

    rows_pool.cache_clear()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(pa, "jemalloc_memory_pool", missing)
            assert rows_pool().backend_name == pa.default_memory_pool().backend_name
    finally:
        rows_pool.cache_clear()
