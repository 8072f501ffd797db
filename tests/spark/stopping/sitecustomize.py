"""Stops a Python process of Spark at a system call, so that a test can kill it there.

`STOP_AT` holds a call's name, a regular expression for the file's path, and how many such calls
pass before; the process writes its id to the file `STOPPED` and stops. Python imports this by its
name from a folder of PYTHONPATH, in the driver and in every worker.
"""

import itertools
import os
import re
import signal
from typing import Any

_BY_DESCRIPTOR = ("write", "writev", "fsync", "copy_file_range")
_BY_LAST_PATH = ("link", "replace")


def _path_of(name: str, arguments: tuple[Any, ...]) -> str:
    if name in _BY_DESCRIPTOR:
        try:
            return os.readlink(f"/proc/self/fd/{arguments[name == 'copy_file_range']}")  # noqa: PTH115
        except OSError:
            return ""
    return str(arguments[1 if name in _BY_LAST_PATH else 0])


def _stop() -> None:
    temporary = f"{os.environ['STOPPED']}-{os.getpid()}"
    with open(temporary, "w") as file:  # noqa: PTH123 - a call that nothing here replaces
        file.write(str(os.getpid()))
    os.rename(temporary, os.environ["STOPPED"])  # noqa: PTH104 - the same
    os.kill(os.getpid(), signal.SIGSTOP)


def _install(name: str, path: str, passing: int) -> None:
    pattern, calls, call = re.compile(path), itertools.count(), getattr(os, name)

    def stopping(*arguments: Any, **options: Any) -> Any:
        if pattern.search(_path_of(name, arguments)) and next(calls) == passing:
            _stop()
        return call(*arguments, **options)

    setattr(os, name, stopping)


if "STOP_AT" in os.environ:
    _NAME, _PATH, _PASSING = os.environ["STOP_AT"].split(" ")
    _install(_NAME, _PATH, int(_PASSING))
