"""Delays requests to storage, in Python processes that have this folder in their path."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VARIABLE = "SEGSTORE_BENCHMARK_DELAY"  # a file: while it is there, requests wait so many seconds


@contextmanager
def delayed_requests() -> Iterator[None]:
    """Let each request of this process wait as the file says."""
    from segstore_ds.storage.checked import CheckedStorage

    run = CheckedStorage.run
    file = Path(os.environ[VARIABLE])

    def delayed(self: CheckedStorage, *args: Any, **kwargs: Any) -> Any:
        if file.exists():
            time.sleep(float(file.read_text()))
        return run(self, *args, **kwargs)

    CheckedStorage.run = delayed  # type: ignore[method-assign]
    try:
        yield
    finally:
        CheckedStorage.run = run  # type: ignore[method-assign]


if VARIABLE in os.environ and __name__ == "sitecustomize":
    ends = delayed_requests()  # kept: it would end with the object
    ends.__enter__()
