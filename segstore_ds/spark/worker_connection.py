"""The TCP connection between Spark and one of its Python workers, made quicker.

Where two small pieces are sent one after the other, the second waits until the first has been
acknowledged (Nagle's algorithm), and Linux delays that by 40 ms in case there is a reply to send it
with. Spark sends a task's command and then its rows; a worker answers that a commit is done and
then how. So a worker acknowledges each command as soon as it has read it, and sends without
waiting. Unix sockets know no such wait, but only a session's builder can choose them, as
`recommended_conf` does.
"""

import functools
import os
import socket
import stat
import sys
from contextlib import suppress
from pathlib import Path


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
