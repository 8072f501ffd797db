"""A SPARK_HOME of links, in which Python workers start in half the time.

Workers import pyspark from an archive of its sources, which Python compiles anew in each process.
Here the archives' names are folders with links to the installed packages, which are compiled.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path

import pyspark

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
        (unpacked / package).symlink_to(Path(import_module(package).__file__).parent)
