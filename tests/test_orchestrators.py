"""The recipes for Airflow and Dagster: a day that runs twice is there once.

They run with stand-ins for the packages, which take minutes to install.
"""

import re
import runpy
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

import segstore_ds as segstore

ROOT = Path(__file__).parents[1]
RECIPES = (ROOT / "segstore_ds/docs/kafka.md").read_text()
ORDERS = pa.schema([("day", pa.string()), ("amount", pa.int64())])
DAY = "2026-11-20"
ROWS = [{"day": DAY, "amount": 10}, {"day": DAY, "amount": 20}]


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


@pytest.mark.parametrize("kind", ["airflow", "dagster"])
def test_a_day_of_a_recipe_that_runs_twice_is_there_once(kind, tmp_path, monkeypatch):
    for name, stand_in in STAND_INS.items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    stream = segstore.create(tmp_path / f"orders-{kind}", ORDERS)
    (code,) = re.findall(rf"^```python {kind}\n(.*?)^```$", RECIPES, re.MULTILINE | re.DOTALL)
    flow = tmp_path / "flow.py"
    flow.write_text(code.replace("/tmp/", f"{tmp_path}/"))  # noqa: S108
    for _ in range(2):
        names = runpy.run_path(str(flow))
        if kind == "dagster":
            names["orders"](SimpleNamespace(partition_key=DAY))
    assert stream.refresh().read().read_all().to_pylist() == ROWS
