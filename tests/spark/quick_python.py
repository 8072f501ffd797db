"""A Python for Spark's JVMs whose processes are forked from one that has imported what they need.

Spark starts a Python process for every streaming query, every error and every kind of call, and
each imports for most of a second. Here `PYSPARK_PYTHON` is a small program that hands what it was
given to a server, which forks. The program ends as the fork does, and the fork ends with it. Run
as a program this is the server, which ends with its input: ``python quick_python.py ADDRESS``.
"""

import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

# Without `site` it starts in ten milliseconds.
CLIENT = """#!{python} -IS
import json, os, socket, sys
if sys.argv[1:2] != ["-m"]:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    given = json.dumps([sys.argv[2:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(given).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(given)
    code = server.recv(1)
sys.exit(code[0] if code else 1)
"""
PRELOADED = ("pyspark.worker", "pyspark.sql.worker", "pyspark.sql.streaming", "pyarrow.parquet")
# What a process executes tells what it is for, so each imports that itself.
EXECUTED = ("pyspark.worker", "pyspark.sql.worker.", "pyspark.sql.streaming.python_streaming_")
ROOMS = ("spark.batch", "spark.source", "spark.streaming", "stream", "read", "write")


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """Run the server, and give the program that stands for Python; Python itself off Linux.

    What the server forked ends with its JVM.
    """
    if not hasattr(os, "pidfd_open"):
        yield sys.executable
        return
    program, address = folder / "python", str(folder / "forks")
    program.write_text(CLIENT.format(python=sys.executable, address=address))
    program.chmod(0o755)
    settings = {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PYTHONHASHSEED": "0",  # as Spark gives workers: rows go to partitions by hashes of texts
        "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
        "OPENBLAS_NUM_THREADS": "1",  # no thread lives on in a fork
    }
    command = [sys.executable, __file__, address]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **settings}
    ) as server:
        assert server.stdout.read(1), "no server of Python processes"
        yield str(program)


def preload() -> None:
    """Import what workers import, but for what they execute."""
    for name in (*PRELOADED, *(f"segstore_ds.{room}" for room in ROOMS)):
        package = import_module(name)
        for found in walk_packages(getattr(package, "__path__", []), f"{name}."):
            with suppress(ImportError):
                import_module(found.name)
    for name in [name for name in sys.modules if name.startswith(EXECUTED)]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()


def serve(address: str) -> None:
    """Fork for each connection, and tell it how the fork ended; until the input ends."""
    listening, events = socket.socket(socket.AF_UNIX), select.poll()
    listening.bind(address)
    listening.listen(64)
    events.register(0, select.POLLIN)
    events.register(listening, select.POLLIN)
    os.write(1, b"!")
    forks: dict[int, tuple[int, int, socket.socket]] = {}  # by each of its two descriptors
    while True:
        for number, _ in events.poll():
            if number == 0:
                return
            if number == listening.fileno():
                client, _ = listening.accept()
                pid = fork(client)
                ended = os.pidfd_open(pid)
                forks[ended] = forks[client.fileno()] = (pid, ended, client)
                events.register(ended, select.POLLIN)
                events.register(
                    client, 0
                )  # that the program was ended; what it sends is the fork's
                continue
            if number not in forks:  # it ended together with its program
                continue
            pid, ended, client = forks[number]
            if number != ended:
                events.unregister(client)
                os.kill(pid, signal.SIGTERM)
                continue
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            del forks[ended], forks[client.fileno()]
            for each in (ended, client):
                with suppress(KeyError):
                    events.unregister(each)
            os.close(ended)
            with suppress(OSError):
                client.send(bytes([abs(code)]))
            client.close()


def fork(client: socket.socket) -> int:
    """Begin what a program asks for; return the process, which waits for the program by itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads: Arrow's allocator has one that survives this
        pid = os.fork()
    if pid:
        return pid
    code = 0
    try:
        execute(client)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - as Python shows what a program raises
        sys.excepthook(*sys.exc_info())
        code = 1
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def execute(client: socket.socket) -> None:
    """Run what a program asks for, as if it were started so."""
    length, streams, _, _ = socket.recv_fds(client, 4, 3)
    if not length:  # the program was ended before it asked
        return
    with client.makefile("rb") as file:
        given = file.read(int.from_bytes(length, "big"))
    (module, *arguments), folder, environment = json.loads(given)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [folder, *paths, *(path for path in sys.path[1:] if path not in paths)]
    sys.argv = [module, *arguments]
    sys.modules.pop(module, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))
    preload()
    serve(sys.argv[1])
