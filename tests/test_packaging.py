"""The wheel: what it holds, what it puts beside itself, and what importing it pulls in."""

import os
import subprocess
import sys
import venv
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

import segstore_ds as segstore

ROOT = Path(__file__).parents[1]
_NO_SPARK = "import sys; sys.modules['pyspark'] = None"
# Where there is no Spark, events are appended and read, and a helper says what is missing.
_CORE = """
import sys
import segstore_ds as segstore
assert not {"read", "spark"} & {*dir(segstore)}
stream = segstore.create(sys.argv[1], like={"user": "ada", "n": 1})
stream.append([{"user": "ada", "n": 1}, {"user": "bob", "n": 2}])
assert stream.read(filters=[["n", ">", 1]]).read_all()["user"].to_pylist() == ["bob"]
assert stream.verify().ok
for helper in ("read", "spark"):
    try:
        getattr(segstore, helper)
    except segstore.errors.InvalidInputError as error:
        print(error)
"""
_DOCS = """
from segstore_ds.cli.main import main
for words in (["reference"], ["SEG_CONFLICT"], ["Stream.append"], ["compact"]):
    assert main(["docs", *words]) == 0, words
"""


def build(folder, distribution=""):
    """Build the wheel of this checkout without a network."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        env={**os.environ, "SEGSTORE_DISTRIBUTION": distribution},
        check=True,
        capture_output=True,
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of the whole."""
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """The wheel of the core."""
    return build(tmp_path_factory.mktemp("core"), "core")


def metadata_of(wheel):
    archive = zipfile.ZipFile(wheel)
    (path,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    return message_from_string(archive.read(path).decode())


@pytest.fixture(scope="module")
def names(wheel):
    return zipfile.ZipFile(wheel).namelist()


@pytest.mark.slow
def test_wheel_holds_what_is_no_module(names):
    """Every page and picture of the documentation, and these."""
    wanted = {
        "segstore_ds/py.typed",
        "segstore_ds/DESIGN.md",
        "segstore_ds/SOURCE.md",
        "segstore_ds/format/FORMAT.md",
        "segstore_ds/publish/TABLES.md",
        "segstore_ds/redact/REDACTION.md",
        "segstore_ds/replication/REPLICATION.md",
        "segstore_ds/retention/READERS.md",
        "segstore_ds/data/flights-2013-01.parquet",
        "segstore_ds/data/grafana.json",
        "segstore_ds/data/README.md",
        f"segstore_ds-{segstore.__version__}.dist-info/licenses/LICENSE",
    }
    tops = {"segstore_ds", "pyspark_segstore.py", f"segstore_ds-{segstore.__version__}.dist-info"}
    assert {name.partition("/")[0] for name in names} == tops
    docs = [path for path in (ROOT / "segstore_ds/docs").rglob("*") if path.is_file()]
    wanted |= {str(path.relative_to(ROOT)) for path in docs}
    assert wanted <= {*names}


@pytest.mark.slow
def test_wheel_holds_every_module_and_nothing_made(names):
    modules = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "segstore_ds").rglob("*.py")
        if "__pycache__" not in path.parts
    }
    # It lies in the package's folder, and is installed beside the package.
    modules = modules - {"segstore_ds/spark/pyspark_segstore.py"} | {"pyspark_segstore.py"}
    assert {name for name in names if name.endswith(".py")} == modules
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone")
def test_the_clone_holds_nothing_that_a_run_made():
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    top = {name.partition("/")[0] for name in listed.stdout.splitlines()}
    assert {name for name in top if not name.startswith(".")} == {
        *("pyproject.toml", "README.md", "LICENSE", "segstore_ds", "tests", "benchmarks")
    }


@pytest.mark.slow
def test_metadata_names_the_python_the_license_and_the_command(wheel):
    archive = zipfile.ZipFile(wheel)
    info = f"segstore_ds-{segstore.__version__}.dist-info"
    metadata = message_from_string(archive.read(f"{info}/METADATA").decode())
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    entry_points = archive.read(f"{info}/entry_points.txt").decode()
    assert "segstore = segstore_ds.cli.main:main" in entry_points


@pytest.mark.slow
def test_the_core_is_the_same_files_without_spark(wheel, core):
    whole, part = (metadata_of(each) for each in (wheel, core))
    assert (part["Name"], part["Version"]) == ("segstore-core", whole["Version"])
    files = [
        {name for name in zipfile.ZipFile(each).namelist() if ".dist-info/" not in name}
        for each in (wheel, core)
    ]
    assert files[0] == files[1]
    needs = [
        {text for text in each.get_all("Requires-Dist") if "extra ==" not in text}
        for each in (whole, part)
    ]
    assert {text.partition(">")[0].partition("<")[0] for text in needs[0] - needs[1]} == {"pyspark"}
    assert needs[1] < needs[0]
    extras = {*part.get_all("Provides-Extra")}
    assert (
        {"s3", "cli"}
        <= extras
        == {*whole.get_all("Provides-Extra")} - {*("test", "bench", "rivals")}
    )
    assert not [text for text in part.get_all("Requires-Dist") if "segstore-ds" in text]


@pytest.mark.slow
def test_the_core_works_where_there_is_no_spark(core, tmp_path):
    zipfile.ZipFile(core).extractall(tmp_path / "core")
    done = subprocess.run(
        [sys.executable, "-c", _NO_SPARK + _CORE + _DOCS, str(tmp_path / "s")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "core")},
        check=True,
        capture_output=True,
        text=True,
    )
    assert "pip install segstore-ds" in done.stdout


@pytest.mark.slow
def test_the_core_installs_alone(core, tmp_path):
    """In an empty environment, from the package index."""
    venv.create(tmp_path / "env")
    python = str(tmp_path / "env/bin/python")
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    install = [*pip, "install", "--quiet", "--no-input", "--no-compile", core]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode and "Retrying" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    done = subprocess.run(
        [python, "-c", _CORE, str(tmp_path / "s")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "pip install segstore-ds" in done.stdout
    listed = subprocess.run([*pip, "list"], capture_output=True, text=True, check=True)
    assert "segstore-core" in listed.stdout
    assert "pyspark" not in listed.stdout
