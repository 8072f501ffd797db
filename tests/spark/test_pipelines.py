"""Declarative Pipelines: a flow that reads a stream, and a sink that writes one."""

import inspect
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from process_kit import spark_environment

import segstore_ds as segstore
from segstore_ds.spark import pyspark_segstore

pipelines = pytest.importorskip(
    "pyspark.pipelines", reason="Spark 4.1 is the first that has pipelines"
)
pytest.importorskip("yaml", reason="spark-pipelines needs pyyaml")
pytestmark = [pytest.mark.slow, pytest.mark.spark]

CONF = {"spark.ui.enabled": "false", "spark.python.unix.domain.socket.enabled": "true"}
COMMAND = Path(sys.executable).with_name("spark-pipelines")
SPEC = """
name: clicks
storage: file://{0}/storage
libraries:
  - glob:
      include: transformations/**
"""
FLOWS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
dp.create_sink(name="copied", format="segstore", options={{"path": "{0}/target"}})


@dp.append_flow(target="copied")
def copy_clicks():
    return spark.readStream.format("segstore").load("{0}/source").where("n > 1")
"""


CHANGES = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


@dp.temporary_view
def changes():
    stream = spark.readStream.format("segstore").option("offsetColumn", "position")
    return stream.load("{0}/source")


for kind in (1, 2):
    dp.create_streaming_table(f"plans{{kind}}")
    dp.create_auto_cdc_flow(
        target=f"plans{{kind}}",
        source="changes",
        keys=["user"],
        sequence_by="position",
        apply_as_deletes="gone",
        except_column_list=["gone", "position"],
        stored_as_scd_type=kind,
    )
"""


@pytest.fixture
def command(tmp_path, worker_python):
    """Run a command of spark-pipelines with flows, and return what it did."""

    def run(verb, flows):
        (tmp_path / "transformations").mkdir(exist_ok=True)
        (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(tmp_path))
        (tmp_path / "transformations" / "flows.py").write_text(flows.format(tmp_path))
        # As an installed package has it: Spark finds the format by itself.
        (tmp_path / "installed").mkdir(exist_ok=True)
        shutil.copy(pyspark_segstore.__file__, tmp_path / "installed")
        path = f"{Path(__file__).parents[2]}:{tmp_path}/installed"
        return subprocess.run(
            [COMMAND, verb, *(f"--conf={name}={value}" for name, value in CONF.items())],
            env=spark_environment(PYTHONPATH=path, PYSPARK_PYTHON=worker_python),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_changes_of_keys_go_by_the_offset(tmp_path, command):
    """A dry run, which resolves all columns: no format for this Spark takes the flow's merges."""
    flow = getattr(pipelines, "create_auto_cdc_flow", None)
    if flow is None or "track_history_column_list" not in inspect.signature(flow).parameters:
        pytest.skip("Spark 4.3 is the first that has both kinds of history")
    schema = pa.schema([("user", pa.string()), ("plan", pa.string()), ("gone", pa.bool_())])
    segstore.create(f"{tmp_path}/source", schema).append([{"user": "ada", "plan": "free"}])
    done = command("dry-run", CHANGES)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def test_a_flow_reads_a_stream_and_a_sink_writes_one(tmp_path, command):
    """Each run of the command appends what is new, once."""
    stream = segstore.create(f"{tmp_path}/source", pa.schema([("n", pa.int64())]))
    for first, copied in ((1, [2]), (3, [2, 3, 4])):
        stream.append(pa.table({"n": [first, first + 1]}))
        done = command("run", FLOWS)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        target = segstore.open(f"{tmp_path}/target")
        assert target.read().read_all()["n"].to_pylist() == copied
        target.verify().check()
