"""A ceiling over the memory of this process, so that a huge allocation fails where it is asked."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from segstore_ds.read import scan


@contextmanager
def memory_limit(extra_bytes: int) -> Iterator[None]:
    """Let this process take so many bytes of address space more than it has, and no more.

    Streams are read in this thread meanwhile: one that begins, but gets no memory for it, never
    says that it has begun, and Python waits for that without end.
    """
    statm = Path("/proc/self/statm")
    if not statm.exists():
        yield
        return
    now = int(statm.read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + extra_bytes, hard))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scan, "read_threads", lambda _reading: 1)
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
