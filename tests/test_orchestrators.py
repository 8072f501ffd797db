"""The recipes for Airflow and Dagster: a day that runs twice is there once.

A change runs them with stand-ins; by their packages, which take minutes to install, by hand.
"""

import os
import re
import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

import segstore_ds as segstore
from benchmarks.workloads.spark_rivals import environment_with

ROOT = Path(__file__).parents[1]
RECIPES = (ROOT / "segstore_ds/docs/kafka.md").read_text()
ORDERS = pa.schema([("day", pa.string()), ("amount", pa.int64())])
DAY = "2026-11-20"
ROWS = [{"day": DAY, "amount": 10}, {"day": DAY, "amount": 20}]
# Runs its commands in one process: each imports for seconds.
AIRFLOW = """
import sys
from airflow.__main__ import main
for command in sys.argv[1:]:
    sys.argv = ["airflow", *command.split()]
    main()
"""
TO_DAGSTER = f"""
for _ in range(2):
    assert dagster.materialize([orders], partition_key="{DAY}").success
"""


def as_it_is(**_: object) -> object:
    """Stand in for a decorator that takes options."""
    return lambda decorated: decorated


STAND_INS = {
    "pendulum": SimpleNamespace(datetime=lambda *_, tz=None: tz),
    "airflow.sdk": SimpleNamespace(dag=as_it_is, task=lambda work: partial(work, ds=DAY)),
    "dagster": SimpleNamespace(
        asset=as_it_is,
        DailyPartitionsDefinition=dict,
        AssetExecutionContext=SimpleNamespace,
        MaterializeResult=dict,
    ),
}


def write_recipe(kind: str, folder: Path, more: str = "") -> Path:
    """Write the recipe as a file of its own, whose stream lies in a folder."""
    (code,) = re.findall(rf"^```python {kind}\n(.*?)^```$", RECIPES, re.MULTILINE | re.DOTALL)
    path = folder / "flows" / "flow.py"
    path.parent.mkdir()
    path.write_text(code.replace("/tmp/", f"{folder}/") + more)  # noqa: S108
    return path


def environment(requirement: str) -> Path:
    """Return the Python of an environment with a package, or skip."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        return environment_with(folder / "segstore-benchmarks", requirement)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{requirement} can't be installed here: {error}")


def run(command: list[str], folder: Path, **more: str) -> str:
    """Run a command in a folder, and return what it printed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **more},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def named(requirement: str) -> str:
    """Return a requirement with the version that the page names."""
    (version,) = re.findall(rf"{requirement} ([\d.]+\d)", RECIPES)
    return version


@pytest.mark.parametrize("kind", ["airflow", "dagster"])
def test_a_day_of_a_recipe_that_runs_twice_is_there_once(kind, tmp_path, monkeypatch):
    for name, stand_in in STAND_INS.items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    stream = segstore.create(tmp_path / f"orders-{kind}", ORDERS)
    flow = write_recipe(kind, tmp_path)
    for _ in range(2):
        names = runpy.run_path(str(flow))
        if kind == "dagster":
            names["orders"](SimpleNamespace(partition_key=DAY))
    assert stream.refresh().read().read_all().to_pylist() == ROWS


@pytest.mark.sweep
@pytest.mark.timeout(900)
def test_airflow_runs_a_day_twice_and_its_events_are_there_once(tmp_path: Path) -> None:
    python = environment(f"apache-airflow=={named('Airflow')}")
    stream = segstore.create(tmp_path / "orders-airflow", ORDERS)
    flow = write_recipe("airflow", tmp_path)
    settings = {
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(flow.parent),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
    }
    day = f"dags test load_orders {DAY}"
    commands = ["db migrate", "dags reserialize", day, day]
    said = run([str(python), "-c", AIRFLOW, *commands], tmp_path, **settings)
    assert len(re.findall("DagRun Finished.*state=success", said)) == 2, said
    assert stream.refresh().read().read_all().to_pylist() == ROWS


@pytest.mark.sweep
@pytest.mark.timeout(900)
def test_dagster_materializes_a_day_twice_and_its_events_are_there_once(tmp_path: Path) -> None:
    python = environment(f"dagster=={named('Dagster')}")
    stream = segstore.create(tmp_path / "orders-dagster", ORDERS)
    flow = write_recipe("dagster", tmp_path, TO_DAGSTER)
    run([str(python), str(flow)], tmp_path, DAGSTER_HOME="")
    assert stream.refresh().read().read_all().to_pylist() == ROWS
