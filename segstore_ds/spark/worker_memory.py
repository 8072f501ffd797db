"""The garbage collector in Spark's Python workers.

Spark's daemon runs a full collection in a worker after each reply. Every request of a micro-batch
then pays for a walk through 100,000 objects of imported modules, which never become garbage. So a
worker freezes what it holds when it has done its first piece of work: by then all that the work
needs has been imported, and the rows of the task are gone.
"""

import functools
import gc
import os
import sys

import pyarrow as pa

# Workers that let pyarrow make arrays of Python's values: tasks for their message to the driver, a
# streaming query's commits for compactions. pyarrow imports pandas for the first one.
_MAKES_ARRAYS = {"pyspark.worker", "pyspark.sql.worker.python_streaming_sink_runner"}


@functools.cache
def freeze_worker() -> None:
    """Take what this process holds out of later collections, once, if Spark will reuse it."""
    # pyspark refuses to import this module anywhere but in a worker, and each kind of worker does.
    if "pyspark.worker_util" not in sys.modules or "SPARK_REUSE_WORKER" not in os.environ:
        return
    if _MAKES_ARRAYS & sys.modules.keys():
        pa.array([])
    gc.collect()  # garbage that is frozen would stay
    gc.freeze()
