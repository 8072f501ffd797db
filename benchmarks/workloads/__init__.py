"""The workloads: each module enters its own when it is imported."""

import importlib
import pkgutil


def load() -> None:
    """Import every workload."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
