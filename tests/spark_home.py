"""A SPARK_HOME of links in which JVMs and Python workers start in half the time.

Workers import pyspark from an archive of its sources, which Python compiles anew in each process.
Here the archives' names are folders with links to the installed packages, which are compiled.
JVMs map the classes that they need from a file, once there is one. Run as a program this is the
session that writes it: `python spark_home.py FILE`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

INSTALLED = Path(pyspark.__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "segstore-tests"


@cache
def spark_home() -> Path:
    """Return the home; it is made once for an installed Spark."""
    name = f"{pyspark.__version__}-{sha256(str(INSTALLED).encode()).hexdigest()[:8]}"
    home = CACHE / f"spark-{name}"
    if not home.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=CACHE))
        make_home(made)
        with suppress(OSError):  # another process was faster
            made.rename(home)
        shutil.rmtree(made, ignore_errors=True)
    return home


def make_home(folder: Path) -> None:
    """Fill a folder with links to all of Spark but the `work` that executors leave in it."""
    (folder / "python").mkdir()
    for path in [*INSTALLED.iterdir(), *(INSTALLED / "python").iterdir()]:
        if path.name not in ("python", "lib", "work"):
            (folder / path.relative_to(INSTALLED)).symlink_to(path)
    for archive in INSTALLED.glob("python/lib/*.zip"):
        package = archive.name.partition("-")[0].removesuffix(".zip")  # py4j-0.10.9.9-src.zip
        unpacked = folder / "python" / "lib" / archive.name
        unpacked.mkdir(parents=True)
        (unpacked / package).symlink_to(Path(str(import_module(package).__file__)).parent)


# Tests start many JVMs for a minute each: two fifths of their CPU time went to the second compiler
# and to the collector's threads. Every driver reads the variable, also those that tests start.
VARIABLE, JVM_OPTIONS = "SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
os.environ.setdefault(VARIABLE, JVM_OPTIONS)
_GIVEN = os.environ[VARIABLE]


def environment() -> dict[str, str]:
    """Return the variables of a driver that is to start quickly."""
    file = _classes()
    mapped = f" -XX:SharedArchiveFile={file} -Xlog:cds*=off" if file.exists() else ""
    return {"SPARK_HOME": str(spark_home()), VARIABLE: _GIVEN + mapped}


@cache
def _classes() -> Path:
    """Return the name of the file for this Spark and this Java."""
    given = os.environ.get("JAVA_HOME")
    java = Path(shutil.which(f"{given}/bin/java" if given else "java") or os.devnull).resolve()
    java_is = sha256(f"{java} {java.stat().st_mtime_ns}".encode()).hexdigest()[:8]
    return spark_home().with_name(f"{spark_home().name}-{java_is}.jsa")


def begin_classes() -> subprocess.Popen[bytes] | None:
    """Begin to write the file unless it is there; it takes half a minute of CPU."""
    if _classes().exists():
        return None
    return subprocess.Popen(
        [sys.executable, __file__, str(_classes())],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def write_classes(file: Path) -> None:
    """Use a little of everything, and let the JVM write what it has loaded."""
    made = Path(tempfile.mkdtemp(dir=CACHE))
    options = f"{JVM_OPTIONS} -Xlog:cds=off -XX:ArchiveClassesAtExit={made / file.name}"
    os.environ |= {"SPARK_HOME": str(spark_home()), VARIABLE: options}
    os.environ["PYSPARK_PYTHON"] = sys.executable
    root = str(Path(__file__).parents[1])
    os.environ["PYTHONPATH"] = root
    sys.path.insert(0, root)
    from segstore_ds.spark import register

    try:
        builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        warehouse = str(made / "warehouse")
        spark = builder.config("spark.sql.warehouse.dir", warehouse).getOrCreate()
        register(spark)
        url = f"file://{made}/stream"
        events = spark.sql("SELECT id n, id % 2 k FROM range(9)")
        events.write.format("segstore").mode("append").save(url)
        found = spark.read.format("segstore").load(url).where("n > 1").groupBy("k").count()
        found.write.parquet(f"{url}.parquet")
        spark.read.parquet(f"{url}.parquet").orderBy("k").collect()
        copy = spark.readStream.format("segstore").load(url).writeStream.format("segstore")
        copy = copy.option("checkpointLocation", f"{url}-checkpoint").trigger(availableNow=True)
        copy.start(f"{url}-2").awaitTermination()
        gateway: Any = spark.sparkContext._gateway
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
        (made / file.name).rename(file)
    finally:
        shutil.rmtree(made)


if __name__ == "__main__":
    write_classes(Path(sys.argv[1]))
