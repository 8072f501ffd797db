"""Child processes of the tests: one server forks them quickly, and they say what they did."""

import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

# What a child would import at half a second each; Arrow imports pandas with the first list that it
# is given.
PRELOAD = [
    *("segstore_ds.public", "segstore_ds.storage.local", "pytest"),
    *("pandas", "pyarrow.compute", "pyarrow.pandas_compat"),
]
CLIENTS = {"s3fs", "adlfs", "gcsfs"}


def plain_environment(**more: str) -> dict[str, str]:
    """Return the environment for a program that starts a Spark of its own, with more variables.

    What sessions of this process have set is left out: Connect's mode, for example, is inherited.
    """
    kept = {name: value for name, value in os.environ.items() if "SPARK" not in name}
    return {**kept, "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", **more}


def spark_environment(**more: str) -> dict[str, str]:
    """Return the same for a program that starts the Spark of this environment, quickly."""
    from spark_home import environment

    return plain_environment(**{**environment(), "PYSPARK_PYTHON": sys.executable, **more})


def forkserver() -> Any:
    """Return the context whose children start within milliseconds, with everything imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOAD, *CLIENTS & {*sys.modules}])
    return context


def messages(connection: Connection) -> Iterator[Any]:
    """Yield what a child sent, up to its end; one that says nothing for three minutes hangs."""
    while True:
        try:
            assert connection.poll(180), "the child hangs"
            yield connection.recv()
        except (EOFError, OSError):
            return


@contextmanager
def running(target: Any, *arguments: Any) -> Iterator[tuple[Any, Connection]]:
    """Run a function with a pipe's end and arguments in a child; it is gone afterwards."""
    context = forkserver()
    ours, theirs = context.Pipe(duplex=True)
    child = context.Process(target=target, args=(theirs, *arguments), daemon=True)
    child.start()
    theirs.close()
    try:
        yield child, ours
    finally:
        child.kill()
        child.join()
        ours.close()
