"""`pyarrow.compute`, imported when one of its functions is first used.

The import takes 40 ms of CPU, and a small read or append needs none of its functions.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    globals()[name] = found = getattr(import_module("pyarrow.compute"), name)
    return found
