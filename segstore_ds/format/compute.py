"""`pyarrow.compute`, which is loaded when a function of it is first used.

Loading it wraps each of its functions, 40 ms of CPU, and a small read or append needs none.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    globals()[name] = found = getattr(import_module("pyarrow.compute"), name)
    return found
