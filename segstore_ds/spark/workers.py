"""Spark's Python workers: their garbage collector, their connection to Spark, and their log.

**Collector.** Spark's daemon runs a full collection in a worker after each reply. Every request of
a micro-batch then pays for a walk through 100,000 objects of imported modules, which never become
garbage. So a worker freezes what it holds when it has done its first piece of work: by then all
that the work needs has been imported, and the rows of the task are gone.

Until then it hardly collects: importing what it needs would start a dozen collections of all that
Spark has imported, a fifth of the time until its first reply.

**Connection.** Where two small pieces are sent one after the other by TCP, the second waits until
the first has been acknowledged (Nagle's algorithm), and Linux delays that by 40 ms in case there is
a reply to send it with. Spark sends a task's command and then its rows; a worker answers that a
commit is done and then how. So a worker acknowledges each command as soon as it has read it, and
sends without waiting. Unix sockets know no such wait, but only a session's builder can choose them,
as `recommended_conf` does.

**Log.** INFO where Spark collects it, and once that a write is slow. Only a task learns the
session's settings, so tasks tell the commit, whose log is the driver's.
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


def hasten() -> None:
    """Acknowledge what Spark has sent to this worker, so that it sends the rest at once."""
    if (spark := connection()) is not None:
        with suppress(OSError):  # the system knows the option's name alone
            spark.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


@functools.cache
def connection() -> socket.socket | None:
    """Return Spark's connection to this worker, on which now nothing that is sent waits.

    It is None outside of workers, where it is none of TCP, and where the system doesn't say.
    """
    # pyspark refuses to import this module anywhere but in a worker, and each kind of worker does.
    if "pyspark.worker_util" in sys.modules and hasattr(socket, "TCP_QUICKACK"):
        with suppress(OSError):
            return _find()
    return None


def _find() -> socket.socket | None:
    # Open before anything else can be, it has the lowest number behind the standard streams.
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
    except OSError:  # the listing's own, which is closed
        return False


_LOG = logging.getLogger(__name__)

# Set in a worker when spark.sql.pyspark.worker.logging.enabled is true.
_COLLECTED = "PYSPARK_SPARK_SESSION_UUID"


def show_info() -> None:
    """Let INFO records through if Spark collects them and nobody has chosen a level.

    Workers start with Python's default level, which drops INFO. A worker belongs to Spark, so there
    is no program whose choice this could override.
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
    """Warns once per process, when Spark has measured many rows of what it committed."""

    def __init__(self) -> None:
        self._measured = 0

    def add(self, measured: int) -> None:
        """Count the measured rows of a commit; a streaming query has one for each batch."""
        before, self._measured = self._measured, self._measured + measured
        if before < MANY_ROWS <= self._measured:
            _LOG.warning(_UNTUNED)


ADVICE = Advice()
