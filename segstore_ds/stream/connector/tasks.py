"""What a task of a read needs: its part of the plan, and no more."""

from segstore_ds.read.plan import Reading, ReadTask
from segstore_ds.read.scan import run_task

__all__ = ["ReadTask", "Reading", "run_task"]
