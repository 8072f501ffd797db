"""The garbage collector in Spark's Python workers.

Spark's daemon runs a full collection in a worker after each reply. Every request of a micro-batch
then pays for a walk through 100,000 objects of imported modules, which never become garbage. So a
worker freezes what it holds when it has done its first piece of work: by then all that the work
needs has been imported, and the rows of the task are gone.
"""

import gc
import os
import sys

import pyarrow as pa

# Entry points that let pyarrow make arrays of Python's values, and the worker in which they do:
# tasks for their message to the driver, a streaming query's commits for compactions.
_MAKES_ARRAYS = {
    "write": "pyspark.worker",
    "commit": "pyspark.sql.worker.python_streaming_sink_runner",
}
_FROZEN: set[bool] = set()  # whether with what pyarrow imports for arrays


def commits_here() -> bool:
    """Tell whether this is the process in which Spark commits the batches of streaming queries."""
    return _MAKES_ARRAYS["commit"] in sys.modules


def freeze_worker(entry: str = "") -> None:
    """Take what this process holds out of later collections, if Spark will reuse it.

    Once; and once more when an entry point makes Python values an array for the first time, because
    pyarrow imports pandas for that.
    """
    # pyspark refuses to import this module anywhere but in a worker, and each kind of worker does.
    if "pyspark.worker_util" not in sys.modules or "SPARK_REUSE_WORKER" not in os.environ:
        return
    arrays = _MAKES_ARRAYS.get(entry) in sys.modules
    if arrays in _FROZEN or True in _FROZEN:
        return
    if arrays:
        pa.array([])
    gc.collect()  # garbage that is frozen would stay
    gc.freeze()
    _FROZEN.add(arrays)
