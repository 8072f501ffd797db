"""What a task of a read imports: the types of its part of a plan, and the function that runs it."""

from segstore_ds.read.plan import Reading, ReadTask
from segstore_ds.read.scan import run_task

__all__ = ["ReadTask", "Reading", "run_task"]
