"""CRC-32: the same number, whoever computes it."""

import importlib
import sys
import zlib
from types import SimpleNamespace

import pytest

from segstore_ds import checksum


@pytest.mark.parametrize("faster", [True, False])
def test_crc32_is_that_of_zlib(monkeypatch, faster):
    """Stored checksums are the same with zlib-ng, without it, and by pieces."""
    if faster:
        pytest.importorskip("zlib_ng")
    else:
        monkeypatch.setitem(sys.modules, "zlib_ng", None)
    crc32 = importlib.reload(checksum).crc32
    assert (crc32 is not zlib.crc32) is faster
    for size in (0, 1, 64, 1000, 100_003):
        data = bytes(n * n % 251 for n in range(size))
        assert crc32(data) == zlib.crc32(data)
        assert crc32(memoryview(data)[size // 3 :], crc32(data[: size // 3])) == crc32(data)
    monkeypatch.undo()
    importlib.reload(checksum)


def test_a_build_that_computes_other_numbers_is_not_used(monkeypatch):
    broken = SimpleNamespace(zlib_ng=SimpleNamespace(crc32=lambda *_: 7))
    monkeypatch.setitem(sys.modules, "zlib_ng", broken)
    assert importlib.reload(checksum).crc32 is zlib.crc32
    monkeypatch.undo()
    importlib.reload(checksum)
