"""After an installation of the wheel `format("segstore")` works without `register`."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from spark_home import environment

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

# Run by the python of an environment that holds the wheel and, through a .pth, everything else.
JOB = """
import json, sys
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
print(json.dumps({"counts": counts, "error": text, "from": segstore_ds.__file__}))
spark.stop()
"""


def child(python: Path, *args: str, **env: str) -> tuple[str, str]:
    others = ("PYTHON", "PYSPARK", "SPARK_")  # a session of another test may have set them
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    done = subprocess.run(
        [str(python), *args],
        env={**kept, **env},
        cwd=python.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of a new environment in which the wheel is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    try:
        import hatchling  # noqa: F401
    except ImportError:
        build.remove("--no-build-isolation")  # pip fetches it
    subprocess.run([*pip, *build], check=True, cwd=folder)
    (wheel,) = folder.glob("segstore_ds-*.whl")
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    site = next(venv.glob("lib/python3*/site-packages"))
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True)
    (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    assert (site / "pyspark_segstore.py").exists()
    return venv / "bin" / "python"


def test_format_works_without_register(installed, tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    url = f"file://{tmp_path}/stream"
    inside = {**environment(), "PYSPARK_PYTHON": str(installed)}
    out, logged = child(installed, str(tmp_path / "job.py"), url, **inside)
    said = json.loads(out.splitlines()[-1])
    assert said["counts"] == [15, 2, 15, 20, 20, 20]
    assert "SEG_NOT_FOUND" in said["error"]
    assert "WARN" in logged
    assert "replaced" not in logged
    assert Path(said["from"]).is_relative_to(installed.parents[1])


def test_module_that_spark_imports_is_light(installed):
    """Spark imports it in a process of its own, on every machine, whatever format is asked for."""
    code = (
        "import sys, pyspark_segstore as m\n"
        "print(m.DefaultSource.name())\n"
        "print(sorted(n for n in sys.modules if n.split('.')[0] in "
        "('segstore_ds', 'pyarrow', 'fsspec', 'numpy', 'pandas')))"
    )
    assert child(installed, "-c", code)[0].splitlines() == ["segstore", "[]"]
