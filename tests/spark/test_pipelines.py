"""Declarative Pipelines: a flow that reads a stream, and a sink that writes one."""

import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from process_kit import spark_environment

import segstore_ds as segstore
from segstore_ds.spark import pyspark_segstore

pytest.importorskip("pyspark.pipelines", reason="Spark 4.1 is the first that has pipelines")
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


def test_a_flow_reads_a_stream_and_a_sink_writes_one(tmp_path, worker_python):
    """Each run of the command appends what is new, once."""
    (tmp_path / "transformations").mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(tmp_path))
    (tmp_path / "transformations" / "flows.py").write_text(FLOWS.format(tmp_path))
    # As an installed package has it: Spark finds the format by itself.
    (tmp_path / "installed").mkdir()
    shutil.copy(pyspark_segstore.__file__, tmp_path / "installed")
    path = f"{Path(__file__).parents[2]}:{tmp_path}/installed"
    stream = segstore.create(f"{tmp_path}/source", pa.schema([("n", pa.int64())]))
    for first, copied in ((1, [2]), (3, [2, 3, 4])):
        stream.append(pa.table({"n": [first, first + 1]}))
        done = subprocess.run(
            [COMMAND, "run", *(f"--conf={name}={value}" for name, value in CONF.items())],
            env=spark_environment(PYTHONPATH=path, PYSPARK_PYTHON=worker_python),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        target = segstore.open(f"{tmp_path}/target")
        assert target.read().read_all()["n"].to_pylist() == copied
        target.verify().check()
