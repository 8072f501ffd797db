"""Spark sessions of the tests: one at a time, every kind in a JVM of its own.

Four kinds: `classic` (local[2], three attempts per task), `cluster` (two executors in JVMs of
their own), `standalone` (on a cluster that the test started) and `connect`. Asking for another kind
ends the one that runs, so tests of one kind should stand together. The JVM's output goes to a file,
where tests look for what must not be there.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen

import pytest
from process_kit import spark_environment
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession
from spark_home import VARIABLE, environment, make_home

import segstore_ds as segstore

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent

_COMMON = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "America/St_Johns",  # nobody's default, and half an hour off
}
_MASTERS = {"classic": "local[2,3]", "cluster": "local-cluster[2,1,1024]", "connect": "local[2]"}


def run_program(*command: object, cwd: Path | None = None, env: Mapping[str, str]) -> str:
    """Run a Python program to its end, and return what it prints."""
    given = [sys.executable, *map(str, command)]
    done = subprocess.run(given, env=env, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@contextmanager
def running_group(
    command: Sequence[object], folder: Path, python: str = sys.executable, **more: str
) -> Iterator[Popen[bytes]]:
    """Run a driver and all that it starts, which are killed at the end; `log` has what they say."""
    paths = os.pathsep.join([str(ROOT), str(HERE), str(HERE / "stopping")])
    with (folder / "log").open("ab") as log:
        process = Popen(
            [sys.executable, *map(str, command)],
            env=spark_environment(PYTHONPATH=paths, PYSPARK_PYTHON=python, **more),
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # it ended by itself
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def plan_of(df: DataFrame) -> str:
    """Return how Spark runs a DataFrame."""
    return df._jdf.queryExecution().executedPlan().toString()


def error_of(action: Callable[[], object]) -> str:
    """Return the text of the error that Spark raises."""
    with pytest.raises(PySparkException) as caught:
        action()
    return str(caught.value)


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set settings of a session for a while."""
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)


class Sessions:
    """Starts sessions by kind and ends them; their workers are processes of `python`."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        self._python = python
        self.kind: str | None = None
        self.spark: SparkSession | None = None
        self._gateway = None

    @property
    def log(self) -> Path:
        """Where the output of the running JVM, its Python workers and its executors goes."""
        return self.folder / f"{self.kind}.log"

    @property
    def events(self) -> Path:
        """The event logs."""
        return self.folder / "events"

    @property
    def executor_logs(self) -> Path:
        """The working folders of a local cluster's executors, with what they print."""
        return self._home / "work"

    @property
    def _home(self) -> Path:
        """A home of its own, for executors write in it."""
        return self.folder / "home"

    def get(self, kind: str, extra: Mapping[str, str] | None = None) -> SparkSession:
        """Return a session of a kind; `extra` holds settings for the case that it starts now."""
        if self.kind != kind:
            self.stop()
            self.kind = kind
            self._start(kind, {**_COMMON, **segstore.spark.recommended_conf(), **(extra or {})})
        assert self.spark is not None
        return self.spark

    def stop(self) -> None:
        """End the running session and its JVM."""
        if self.spark is not None:
            self.spark.stop()
            self.spark = self.kind = None
        if self._gateway is not None:
            SparkContext._gateway = SparkContext._jvm = None
            self._gateway.shutdown()
            self._gateway.proc.stdin.close()
            self._gateway.proc.wait(60)
            self._gateway = None

    def _start(self, kind: str, settings: dict[str, str]) -> None:
        self.events.mkdir(exist_ok=True)
        settings["spark.sql.warehouse.dir"] = str(self.folder / "warehouse")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(HERE)])
        # A worker of a standalone cluster is a machine: it is lost with all its processes.
        os.environ["PYSPARK_PYTHON"] = sys.executable if kind == "standalone" else self._python
        os.environ |= environment()
        settings["spark.executor.extraJavaOptions"] = os.environ[VARIABLE]
        if kind == "cluster":
            if not self._home.exists():
                self._home.mkdir()
                make_home(self._home)
            os.environ["SPARK_HOME"] = str(self._home)
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        with self.log.open("wb") as log:
            output = {"stdout": log, "stderr": subprocess.STDOUT}
            self._gateway = launch_gateway(conf.setAppName("tests"), output)
        SparkContext._ensure_initialized(gateway=self._gateway)
        if kind != "connect":
            builder = SparkSession.builder.config(map=settings)
            master = settings.get("spark.master") or _MASTERS[kind]
            self.spark = builder.master(master).getOrCreate()
            return
        os.environ["SPARK_TESTING"] = "1"  # a free port instead of the fixed one
        try:
            self.spark = SparkSession.builder.remote(_MASTERS[kind]).getOrCreate()
        finally:
            del os.environ["SPARK_TESTING"]
