"""Where the package is installed `format("segstore")` works without `register`."""

import json
import os
import re
import shutil
from functools import partial
from pathlib import Path

import pytest
from process_kit import spark_environment
from sessions import run_program

from segstore_ds.spark import pyspark_segstore

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

JOB = """
import json, os, sys
os.dup2(1, 2)
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
url = sys.argv[1]
df = spark.range(0, 10, 1, 2)
df.write.format("segstore").mode("append").option("inlineBytes", 0).save(url)
df.write.format("SegStore").mode("append").save(url)
loaded = spark.read.format("segstore").option("startCut", 5).load(url)
counts = [loaded.count(), loaded.filter("id = 6").count(), loaded.count()]
try:
    spark.read.format("segstore").load(url + "-not-there")
except Exception as error:
    text = str(error)
import segstore_ds
spark.sql(f"CREATE TEMPORARY VIEW v USING segstore OPTIONS (path '{url}')")
counts.append(spark.sql("SELECT * FROM v").count())
segstore_ds.spark.register(spark, storage_options={"auto_mkdir": True})
counts.append(spark.newSession().read.format("segstore").load(url).count())
counts.append(spark.read.format("segstore").load(url).count())
segstore_ds.spark.register(spark)
stream = spark.readStream.format("segstore").load(url).writeStream.format("noop")
stream = stream.option("checkpointLocation", f"{url}-checkpoint").trigger(availableNow=True)
stream.start().awaitTermination()
print(json.dumps({"counts": counts, "error": text}))
spark.stop()
"""


@pytest.fixture
def run(tmp_path, worker_python):
    """Run code where Spark finds the module that the wheel puts beside the package."""
    shutil.copy(pyspark_segstore.__file__, tmp_path)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    environment = spark_environment(PYTHONPATH=path, PYSPARK_PYTHON=worker_python)
    return partial(run_program, "-c", cwd=tmp_path, env=environment)


def test_format_works_without_register(run, tmp_path):
    printed = run(JOB, f"file://{tmp_path}/stream")
    said = json.loads(re.search(r"^{.*}$", printed, re.MULTILINE)[0])
    assert said["counts"] == [15, 2, 15, 20, 20, 20]
    assert "SEG_NOT_FOUND" in said["error"]
    assert "WARN" in printed
    assert "replaced" not in printed


def test_module_that_spark_imports_is_light(run):
    """Spark imports it in a process of its own, on every machine, whatever format is asked for."""
    code = (
        "import sys, pyspark_segstore as m\n"
        "print(m.DefaultSource.name())\n"
        "print(sorted(n for n in sys.modules if n.split('.')[0] in "
        "('segstore_ds', 'pyarrow', 'fsspec', 'numpy', 'pandas')))"
    )
    assert run(code).splitlines() == ["segstore", "[]"]
