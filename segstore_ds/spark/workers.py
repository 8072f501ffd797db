"""Spark's Python workers: their garbage collector, their connection to Spark, and their log.

**Collector.** Spark's daemon runs a full collection in a worker after each reply. In every request
of a micro-batch it would visit 100,000 objects of imported modules, which never become garbage. So
a worker freezes its objects after its first piece of work: then everything is imported, and the
rows of the task are gone.

Before that it rarely collects: the imports would start a dozen collections of everything that Spark
has imported, which take a fifth of the time until the first reply.

**Connection.** If two small messages are sent over TCP, the second waits until the first is
acknowledged (Nagle's algorithm), and Linux delays the acknowledgement by 40 ms. Spark sends a
task's command and then its rows; a worker sends that a commit is done and then its result. So a
worker acknowledges each command as soon as it has read it, and sends without waiting. Unix sockets
have no such delay, but only a session's builder can choose them, as `recommended_conf` does.

**Log.** A worker logs at INFO if Spark collects its log, and warns once that a write is slow. Only
a task knows the session's settings, so it sends them to the commit, whose log is the driver's.
"""

import functools
import gc
import logging
import os
import socket
import stat
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

# Entry points in which pyarrow converts Python values to arrays, and the module of their worker:
# tasks for their message to the driver, a streaming query's commits for compactions.
_MAKES_ARRAYS = {
    "write": "pyspark.worker",
    "commit": "pyspark.sql.worker.python_streaming_sink_runner",
}
_FROZEN: set[bool] = set()  # each time, whether with what pyarrow imports to make arrays
_SELDOM = 1 << 17  # new objects between two collections before that; imports make fewer
_USUAL = gc.get_threshold()


def commits_here() -> bool:
    """Tell whether this is the process in which Spark commits the batches of streaming queries."""
    return _MAKES_ARRAYS["commit"] in sys.modules


def collect_seldom() -> None:
    """Collect rarely, if this process is a worker, until `freeze_worker`.

    If an entry point fails, nothing restores the threshold: Spark ends the worker.
    """
    if _is_reused() and not _FROZEN:
        gc.set_threshold(_SELDOM)


def freeze_worker(entry: str = "") -> None:
    """Exclude the objects of this process from later collections, if Spark will reuse it.

    It does so once, and again after an entry point has converted Python values to an array for the
    first time, because pyarrow imports pandas for that. The little garbage of the imports stays: to
    collect it would delay the reply by as much as all collections that were avoided.
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


def acknowledge() -> None:
    """Acknowledge what Spark has sent to this worker, so that it sends the rest at once."""
    if (spark := connection()) is not None:
        with suppress(OSError):  # the system may have the name of the option and not the option
            spark.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


@functools.cache
def connection() -> socket.socket | None:
    """Return Spark's TCP connection to this worker, set to send without waiting.

    None outside of workers, for another kind of connection, and if the system doesn't show it.
    """
    # pyspark refuses to import this module anywhere but in a worker, and each kind of worker does.
    if "pyspark.worker_util" in sys.modules and hasattr(socket, "TCP_QUICKACK"):
        with suppress(OSError):
            return _find()
    return None


def _find() -> socket.socket | None:
    # It was opened first, so it has the lowest number after the standard streams.
    numbers = sorted(int(path.name) for path in Path("/proc/self/fd").iterdir())
    first = next((number for number in numbers if number > 2 and _is_socket(number)), None)
    if first is None:
        return None
    found = socket.socket(fileno=os.dup(first))
    if found.family not in (socket.AF_INET, socket.AF_INET6):
        found.close()
        return None
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def _is_socket(number: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:  # the listing's own descriptor, which is closed by now
        return False


_LOG = logging.getLogger(__name__)

# Set in a worker when spark.sql.pyspark.worker.logging.enabled is true.
_COLLECTED = "PYSPARK_SPARK_SESSION_UUID"


def show_info() -> None:
    """Let INFO records through if Spark collects them and nobody has chosen a level.

    Workers start with Python's default level, which drops INFO. A worker belongs to Spark, so this
    overrides no program's choice.
    """
    logger = logging.getLogger("segstore_ds")
    if _COLLECTED in os.environ and logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)


QUERY_ID = "sql.streaming.queryId"
BATCH_SIZING = "spark.sql.execution.arrow.maxBytesPerBatch"
MANY_ROWS = 1_000_000  # measuring them takes a task about half a second
_UNTUNED = (
    "Spark measured each row of this write, which takes up to two thirds of its speed: call "
    "segstore.spark.register(spark) first, or write with segstore.spark.write(df, url), or give "
    "segstore.spark.recommended_conf() to the session's builder"
)


def measured_rows(context: TaskContext, rows: int) -> int:
    """Return how many of a task's rows Spark measured: all, unless the session has the setting."""
    return rows if context.getLocalProperty(BATCH_SIZING) is None else 0


class Advice:
    """Warns once per process, when Spark has measured many of the rows that it committed."""

    def __init__(self) -> None:
        self._measured = 0

    def add(self, measured: int) -> None:
        """Count the measured rows of a commit; a streaming query has one for each batch."""
        before, self._measured = self._measured, self._measured + measured
        if before < MANY_ROWS <= self._measured:
            _LOG.warning(_UNTUNED)


ADVICE = Advice()
