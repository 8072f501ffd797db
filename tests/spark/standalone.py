"""A standalone cluster of real processes: a master, two workers, and executors one can lose."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession
from spark_home import VARIABLE, environment

START_LIMIT_S = 600.0
POLL_S = 0.01
IN_FLIGHT_S = 0.3  # until the driver has heard what a process sent before it stood still


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """Return the condition's first true value; fail when it takes too long."""
    limit = time.monotonic() + START_LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < limit, f"not within {START_LIMIT_S:.0f} s: {what}"
        time.sleep(POLL_S)
    return found


class Machine:
    """A process of the cluster with all that it starts, as the machine of a worker."""

    def __init__(self, folder: Path, kind: str, *arguments: str) -> None:
        self.log = folder / f"{kind}-{time.monotonic_ns()}.log"
        quick = environment()
        names = {"SPARK_NO_DAEMONIZE": "1", "SPARK_DAEMON_JAVA_OPTS": quick[VARIABLE]}
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYSPARK_")}
        command = [f"{quick['SPARK_HOME']}/bin/spark-class", f"org.apache.spark.deploy.{kind}"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *arguments, "--host", "127.0.0.1", "--webui-port", "0"],
                env={**inherited, **quick, **names},
                stdout=log,
                stderr=log,
            )

    def said(self, pattern: str) -> str | None:
        """Return the first group of a line that its log holds by now."""
        assert self._process.poll() is None, self.log.read_text()
        found = re.search(pattern, self.log.read_text())
        return found[1] if found else None

    def lose(self) -> None:
        """Kill every process at once."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    def processes(self) -> list[psutil.Process]:
        """Return the processes that live."""
        try:
            mine = psutil.Process(self._process.pid)
            return [mine, *mine.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


class Standalone:
    """The cluster; a lost worker is replaced by a new one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._master = Machine(folder, "master.Master", "--port", "0")
        self.url = wait_until(
            lambda: self._master.said(r"Starting Spark master at (spark://\S+)"), "a master"
        )
        self.workers: list[Machine] = []
        for _ in range(2):
            self.add_worker()

    def add_worker(self) -> None:
        """Start a worker with one core."""
        folder = self.folder / f"worker-{time.monotonic_ns()}"
        folder.mkdir()
        limits = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder)]
        worker = Machine(self.folder, "worker.Worker", *limits, self.url)
        self.workers.append(worker)
        wait_until(lambda: worker.said(r"(Successfully registered) with master"), "a worker")

    def stop(self) -> None:
        """End every process."""
        for machine in (*self.workers, self._master):
            machine.lose()

    def lose_worker_during(self, spark: SparkSession, job: Callable[[], Any]) -> Any:
        """Run a job, lose the older worker while it holds a task, and return the job's answer.

        The worker stands still first: what it sent before is known by then, and as a stage has more
        tasks than cores, it has begun another one or was sent one.
        """
        tracker = spark.sparkContext._jsc.sc().statusTracker()
        wait_until(
            lambda: len(tracker.getExecutorInfos()) == len(self.workers) + 1, "every executor"
        )
        doomed = self.workers[0].processes()  # found before: searching takes long on a busy machine
        ended: dict[str, Any] = {}

        def run() -> None:
            try:
                ended["answer"] = job()
            except BaseException as error:  # noqa: BLE001 - raised below
                ended["error"] = error

        thread = threading.Thread(target=run)
        thread.start()
        stage = wait_until(
            lambda: _busy_stage(spark) or not thread.is_alive(), "tasks on both workers"
        )
        for process in doomed:
            with suppress(psutil.NoSuchProcess):  # a Python worker of a job before
                process.send_signal(signal.SIGSTOP)
        time.sleep(IN_FLIGHT_S)
        self.workers.pop(0).lose()
        self.add_worker()
        thread.join()
        if "error" in ended:
            raise ended["error"]
        assert stage is not True, "the job ended before both workers had a task"
        later = spark.sparkContext.statusTracker().getStageInfo(stage.stageId)
        # A stage whose shuffled rows got lost with the worker is tried again as a whole.
        repeated = later.currentAttemptId > stage.currentAttemptId
        assert repeated or later.numFailedTasks >= 1, "the worker held no task when it was lost"
        return ended["answer"]


def _busy_stage(spark: SparkSession) -> Any:
    """Return what is known of a stage that runs on both workers and has many tasks to come."""
    tracker = spark.sparkContext.statusTracker()
    for number in tracker.getActiveStageIds():
        stage = tracker.getStageInfo(number)
        if stage and stage.numActiveTasks == 2 and stage.numTasks - stage.numCompletedTasks > 4:
            return stage
    return None


def executor_settings(*folders: Path) -> dict[str, str]:
    """Return the settings of executors that fit the workers and import from folders."""
    return {
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.ui.liveUpdate.period": "0",  # the state of tasks is known without delay
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(str(folder) for folder in folders),
        "spark.pyspark.python": sys.executable,
    }
