"""A worker that starts reads none of the archives on its path for fsspec's entry points."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import fsspec
import pyspark
import pytest
from process_kit import plain_environment

REPOSITORY = Path(__file__).parents[2]
# As Spark starts a worker: pyspark itself comes from an archive, too.
LIBRARIES = sorted((Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip"))
WORKER = """
import json, sys, zipfile
import pyspark
path, opened, real = list(sys.path), [], zipfile.ZipFile.__init__
def note(made, file, *rest, **more):
    opened.append(str(file))
    real(made, file, *rest, **more)
zipfile.ZipFile.__init__ = note
{imports}
import fsspec
print(json.dumps([opened, sys.path == path, fsspec.__file__, pyspark.__file__]))
"""
DRIVER = "import segstore_ds.storage; segstore_ds.storage.open_storage('memory://x')"
OURS = f"from pyspark import worker_util\n{DRIVER}"


def start(imports, *archives):
    environment = plain_environment(
        PYTHONPATH=":".join(map(str, [*LIBRARIES, *archives, REPOSITORY]))
    )
    command = [sys.executable, "-c", WORKER.format(imports=imports)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.smoke
def test_no_archive_is_searched():
    opened, path_is_whole, _, spark = start(OURS)
    assert ".zip" in spark
    assert (opened, path_is_whole) == ([], True)


@pytest.mark.parametrize("imports", ["", DRIVER], ids=["fsspec alone", "a driver"])
def test_other_processes_search_them(imports):
    opened, *_ = start(imports)
    assert set(opened) >= set(map(str, LIBRARIES))


def test_fsspec_in_an_archive_is_found(tmp_path):
    """As users ship packages by `--py-files`: nothing else on the path has it."""
    package, archive = Path(fsspec.__file__).parent, tmp_path / "packages.zip"
    with zipfile.ZipFile(archive, "w") as made:
        for file in package.rglob("*.py"):
            made.write(file, Path("fsspec") / file.relative_to(package))
    # Python looks for it in no folder: not in the environment's packages either.
    hide = """
from importlib.machinery import PathFinder
class Hidden(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "fsspec":
            path = [entry for entry in sys.path if entry.endswith(".zip")]
        return PathFinder.find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Hidden
"""
    _, path_is_whole, found, _ = start(hide + OURS, archive)
    assert path_is_whole
    assert found.startswith(str(archive))
