"""The garbage collector in Spark's Python workers.

Spark's daemon runs a full collection in a worker after each reply. Every request of a micro-batch
then pays for a walk through 100,000 objects of imported modules, which never become garbage. So a
worker freezes what it holds when it has done its first piece of work: by then all that the work
needs has been imported, and the rows of the task are gone.

Until then it hardly collects: importing what it needs would start a dozen collections of all that
Spark has imported, a fifth of the time until its first reply.
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
_SELDOM = 1 << 17  # new objects between two collections until then; imports make fewer
_USUAL = gc.get_threshold()


def commits_here() -> bool:
    """Tell whether this is the process in which Spark commits the batches of streaming queries."""
    return _MAKES_ARRAYS["commit"] in sys.modules


def collect_seldom() -> None:
    """Let few collections disturb the imports of this process, if it is a worker, until it freezes.

    What an entry point that fails leaves does not matter: Spark ends the worker.
    """
    if _is_reused() and not _FROZEN:
        gc.set_threshold(_SELDOM)


def freeze_worker(entry: str = "") -> None:
    """Take what this process holds out of later collections, if Spark will reuse it.

    Once; and once more when an entry point makes Python values an array for the first time, because
    pyarrow imports pandas for that. The little garbage that imports have left stays: to collect it
    takes as long as all of the collections that were spared, and the reply would wait.
    """
    if not _is_reused():
        return
    arrays = _MAKES_ARRAYS.get(entry) in sys.modules
    if arrays in _FROZEN or True in _FROZEN:
        return
    if arrays:
        pa.array([])
    gc.freeze()
    gc.set_threshold(*_USUAL)
    _FROZEN.add(arrays)


def _is_reused() -> bool:
    # pyspark refuses to import this module anywhere but in a worker, and each kind of worker does.
    return "pyspark.worker_util" in sys.modules and "SPARK_REUSE_WORKER" in os.environ
