"""The house rules: who may import whom, found by parsing every module."""

import ast
import functools
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

from pyspark import cloudpickle

import segstore_ds
from segstore_ds import public, reports

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "segstore_ds"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)
# What a room may import of the others, from the ground floor up. A room imports itself and what its
# row names; nothing else, and no row names a room that stands below it in this table.
LEAVES = {"checksum", "errors", "options", "version"}
GROUND = LEAVES | {"format", "cache", "storage"}
CORE = GROUND | {"status", "log"}
VERBS = CORE | {"write", "read"}
ALL = VERBS | {"compact", "copy", "replication", "retention", "redact", "repair", "publish"}
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "version": set(),
    "checksum": set(),
    "options": {"errors"},
    "rooms": set(),
    "format": LEAVES,
    "cache": LEAVES,
    "storage": LEAVES,
    "status": LEAVES | {"format", "storage"},
    "log": LEAVES | {"rooms", "format", "storage", "status"},
    "read": CORE,
    "write": CORE | {"read"},
    "compact": VERBS,
    "copy": VERBS | {"compact"},
    "replication": GROUND | {"log", "status", "copy"},
    "publish": VERBS | {"compact"},
    "retention": VERBS | {"compact", "copy", "publish"},
    "redact": VERBS | {"compact", "retention"},
    "repair": VERBS | {"copy", "publish"},
    "observe": VERBS | {"compact", "publish"},
    "stream": ALL | {"observe"},
    "serve": LEAVES | {"format", "stream"},
    "public": ALL | {"observe", "stream"},
    "reports": ALL | {"observe"},
    "__init__": {"errors", "public", "reports", "spark", "version"},
    "spark": {"errors", "options", "version", "format", "reports", "stream", "__init__"},
    "cli": LEAVES | {"format", "storage", "observe", "stream", "serve", "spark", "__init__"},
}
# Of a room that it may import, all that a room uses.
DOORS = {
    ("spark", "format"): "segstore_ds.format.schema",
    ("write", "read"): "segstore_ds.read.filters",  # of the rules for what is appended
    ("spark", "stream"): "segstore_ds.stream.connector",
}
DOOR_NAMES = 43  # of the connector, at most: a step is one function, not its parts
# Third parties: who may import them.
OWNERS = {
    "zlib_ng": {"checksum"},
    "fsspec": {"storage"},
    "s3fs": {"storage"},
    "gcsfs": {"storage"},
    "adlfs": {"storage"},
    "botocore": {"storage"},
    "aiohttp": {"storage"},
    "azure": {"storage"},
    "google": {"storage"},
    "pyspark": {"spark", "cli"},
    "duckdb": {"cli", "stream"},
    "fastavro": {"publish"},
    "pyiceberg": {"publish"},
    "pandas": {"cli", "stream"},
    "jdk": {"cli"},
    "argparse": {"cli"},
    "typer": {"cli"},
    "click": {"cli"},
    "rich": {"cli"},
    "prometheus_client": {"observe"},
    "opentelemetry": {"observe"},
    "hypothesis": set(),
    "pytest": set(),
}
# Purity: bytes to values touch no clock, no file, no chance and no process.
IMPURE = {
    "os",
    "time",
    "random",
    "uuid",
    "secrets",
    "socket",
    "threading",
    "subprocess",
    "tempfile",
}
SPARK_INSIDES = {"_jvm", "_jsc", "_jdf", "_jsparkSession", "_sc", "sparkContext"}


def room(path: Path) -> str:
    """Return the room a module is in."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def module_name(path: Path) -> str:
    """Return the name that a module is imported by."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """Return all nodes of a module."""
    return [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and full name of everything that a module imports, wherever it does."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            module = node.module or ""
            yield node.lineno, module
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def rooms_of(name: str) -> set[str]:
    """Return the rooms of the house that a name may lie in; none for what is not ours."""
    parts = name.split(".")
    if parts[0] != "segstore_ds":
        return set()
    return {parts[1]} if len(parts) > 1 and parts[1] in ROOMS else {"__init__"}


def test_imports_go_down_only() -> None:
    """A room imports itself and what lies below; format, cache and storage never meet."""
    for path, mine in ((path, room(path)) for path in MODULES):
        assert mine in ROOMS, f"decide what {mine} may import"
        allowed = ROOMS[mine] | {mine}
        for line, name in imports(path):
            # `from segstore_ds import options` names the package and then the room.
            if name == "segstore_ds" and "__init__" not in allowed:
                continue
            assert rooms_of(name) <= allowed, f"{path}:{line}: {mine} may not import {name}"
            for other in rooms_of(name) - {mine}:
                door = DOORS.get((mine, other), name)
                assert name == "segstore_ds" or name.startswith(door), (
                    f"{path}:{line}: {name}, not by {door}"
                )


def test_the_door_for_spark_is_narrow() -> None:
    """It offers what Spark's room imports and nothing else, in few names."""
    door = DOORS["spark", "stream"]
    used = {
        name.removeprefix(f"{door}.")
        for path in MODULES
        if room(path) == "spark"
        for _, name in imports(path)
        if name.startswith(f"{door}.") and name.count(".") > door.count(".") + 1
    }
    parts = [path for path in MODULES if module_name(path).startswith(f"{door}.")]
    assert used == {
        f"{path.stem}.{name}" for path in parts for name in import_module(module_name(path)).__all__
    }
    assert len(used) <= DOOR_NAMES


def test_the_table_of_rooms_goes_down_only() -> None:
    """A room names rooms above its own row only, so no two rooms can import each other."""
    seen: set[str] = set()
    for name, allowed in ROOMS.items():
        later = allowed - seen - {"__init__", "spark"}
        assert not later, f"{name} is built on {later}"
        seen.add(name)


def test_no_circle_of_files() -> None:
    """No file imports itself through others, late imports in functions included."""
    names = {module_name(path): path for path in MODULES}
    graph = {
        name: {
            found
            for _, full in imports(path)
            for found in (full, full.rpartition(".")[0])
            if found in names and found != name
        }
        for name, path in names.items()
    }
    # Faces of packages hand names on; an import of a name leads to where it is defined.
    faces = {name for name, path in names.items() if path.name == "__init__.py"}
    graph = {name: found - faces for name, found in graph.items() if name not in faces}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


# Rooms that know no feature by name, and the files that may name one: what reads the objects
# that a clone shares, an option of reads, why an object stays, and tables that show all there is.
FEATURES = re.compile(
    r"follower|(?<!Under)replica|publish|redact|clone|observe|monitor|picture", re.IGNORECASE
)
NAMED = {
    "log/origins.py": {"clone"},
    "read/cuts.py": {"replica"},
    "read/metadata_rows.py": {"redact"},
    "read/parquet_files.py": {"clone"},
    "status/deletable.py": {"clone"},
}


def test_the_core_names_no_feature() -> None:
    """Features hang on the log by seams and on the table by columns."""
    for path in MODULES:
        if room(path) in {"log", "status", "write", "read"}:
            found = {word.lower() for word in FEATURES.findall(path.read_text(encoding="utf-8"))}
            allowed = NAMED.get(path.relative_to(PACKAGE).as_posix(), set())
            assert found <= allowed, f"{path} names {found - allowed}"


# Beside the room: the public verbs, the command, the errors, and what a user sees of them.
KNOW_FOLLOWERS = {
    "cli/arguments.py",
    "cli/look.py",
    "cli/names.py",
    "errors.py",
    "observe/figures.py",
    "observe/series.py",
    "stream/namespaces.py",
    "stream/reads.py",
    "stream/stream.py",
}


def test_few_files_know_that_followers_exist() -> None:
    """Other rooms know mirrors, which the seams of a commit offer."""
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in MODULES
        if room(path) != "replication" and "follower" in path.read_text(encoding="utf-8").lower()
    }
    assert found == KNOW_FOLLOWERS


_SEAMS = """
import sys, tempfile
from types import SimpleNamespace
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.rooms import SEAM_MODULE, SEAM_PROPERTY
from segstore_ds.storage import open_storage
seams = StreamLog(open_storage(tempfile.mkdtemp())).seams
plain, full = (SimpleNamespace(properties=names) for names in ({}, {SEAM_PROPERTY}))
assert type(seams.of(plain)).__name__ == "Seam" and SEAM_MODULE not in sys.modules
assert type(seams.of(plain, full)).__module__ == SEAM_MODULE
assert sys.modules[SEAM_MODULE].PROPERTY == SEAM_PROPERTY
"""


def run(code: str, *arguments: str) -> str:
    """Run code in a process of its own, and return what it printed."""
    command = [sys.executable, "-W", "error::ImportWarning", "-c", code, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout


def test_a_log_has_all_seams_whatever_was_imported() -> None:
    """A commit without its seams would not reach the followers; other streams load none."""
    run(_SEAMS)


def test_third_parties_have_one_door() -> None:
    """Only storage knows fsspec, only spark knows pyspark, only the CLI its libraries."""
    for path in MODULES:
        for line, name in imports(path):
            owners = OWNERS.get(name.split(".")[0])
            assert owners is None or room(path) in owners, f"{path}:{line} imports {name}"
            if room(path) == "format":
                assert name.split(".")[0] not in IMPURE, f"{path}:{line}: format is pure, {name}"


def test_from_package_imports_name_a_room() -> None:
    """Below the front door, `from segstore_ds import x` is a room, never the front door."""
    for path in MODULES:
        if "__init__" in ROOMS[room(path)] or room(path) == "__init__":
            continue
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and node.module == "segstore_ds":
                assert {alias.name for alias in node.names} <= set(ROOMS), path


def test_insides_of_spark_are_touched_in_one_place() -> None:
    """`sparkContext` and the JVM behind it don't exist with Connect: one guarded function."""
    found = set()
    for path in MODULES:
        for function in nodes(path):
            if isinstance(function, ast.FunctionDef | ast.Lambda | ast.Module):
                for node in _own_nodes(function):
                    name = getattr(node, "attr", None) or getattr(node, "value", None)
                    if isinstance(name, str) and name in SPARK_INSIDES:
                        found.add((room(path), getattr(function, "name", path.name)))
    assert len(found) <= 1, found
    assert {where for where, _ in found} <= {"spark"}


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    pending = list(ast.iter_child_nodes(function))
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Attribute | ast.Constant):
            yield node
        if not isinstance(node, ast.FunctionDef | ast.Lambda):
            pending.extend(ast.iter_child_nodes(node))


def test_no_broad_except_outside_boundaries() -> None:
    """Nobody swallows what is not known, but for the outermost lines of CLI and server and upkeep.

    The server's raises again, as an error that a client may see.
    """
    for path in MODULES:
        if path.name == "seams.py":
            continue
        for node in nodes(path):
            if isinstance(node, ast.ExceptHandler) and room(path) != "cli":
                assert node.type is not None, f"{path}:{node.lineno}"
                caught = {getattr(name, "id", None) for name in ast.walk(node.type)}
                again = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
                outermost = room(path) == "serve" and again
                assert "Exception" not in caught or outermost, f"{path}:{node.lineno}"
                assert "BaseException" not in caught or again, f"{path}:{node.lineno}"


# Arrow's datasets load pandas if it is there, so this module is loaded when it is used.
LOADS_PANDAS = "arrow_dataset.py"
_BLOCKED = """
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pyspark", "py4j", "pyspark_segstore"):
            raise ModuleNotFoundError("pyspark is blocked: " + name, name=name)

sys.meta_path.insert(0, Blocked())
for name in sys.argv[1:]:
    importlib.import_module(name)
import segstore_ds
assert callable(segstore_ds.open)
for name in ("read", "spark"):
    try:
        getattr(segstore_ds, name)
    except segstore_ds.errors.InvalidInputError as error:
        assert "pip install segstore-ds" in str(error)
    else:
        raise AssertionError(name)
unasked = ("pyspark", "py4j", "duckdb", "pandas", "polars")
assert not [name for name in sys.modules if name.split(".")[0] in unasked]
"""


def test_everything_but_spark_works_without_pyspark() -> None:
    """Every module outside spark/ imports where there is no pyspark, the command line too."""
    names = [
        module_name(path)
        for path in MODULES
        if room(path) != "spark" and path.name not in ("__main__.py", LOADS_PANDAS)
    ]
    run(_BLOCKED, *names)


_FUNCTIONS = """
import inspect
import segstore_ds.read.plan, segstore_ds.repair.verify
import segstore_ds as segstore
from segstore_ds.read import scan
assert inspect.isfunction(segstore.repair)
assert inspect.isfunction(segstore.read)
assert segstore.read is segstore.spark.read
for name in segstore.spark.__all__:
    assert not inspect.ismodule(getattr(segstore.spark, name)), name
import segstore_ds.spark.query_listener, segstore_ds.read.filters.conditions
assert inspect.isfunction(segstore.spark.listener) and inspect.isfunction(segstore.read)
"""


def test_functions_are_not_hidden_by_rooms() -> None:
    """`segstore.read` and `segstore.repair` are functions, whichever room was imported first."""
    run(_FUNCTIONS)


_LOADED = """
import sys, tempfile
import segstore_ds as segstore
first = sorted(name for name in ("pyarrow", "fsspec", "numpy", "pyspark") if name in sys.modules)
from segstore_ds.read import plan
import segstore_ds.write.request, segstore_ds.copy.destination, segstore_ds.compact.plan
import segstore_ds.repair.verify
assert segstore.open.__name__ == "open" and plan.__name__ == "segstore_ds.read.plan"
assert segstore.errors.SegstoreError is segstore.SegstoreError
assert segstore.repair.__name__ == "repair"
import pyarrow as pa
stream = segstore.create(tempfile.mkdtemp(), pa.schema([("n", pa.int64())]))
stream.append([{"n": 1}, {"n": None}])
numbers = pa.Array.from_buffers(pa.int64(), 3, [None, pa.py_buffer(bytes(24))])
stream.append(pa.RecordBatch.from_arrays([numbers], ["n"]))
assert segstore.open(stream.url).scan().to_arrow().num_rows == 5
slow = ("pyspark", "pandas", "asyncio", "fsspec", "pyarrow.compute")
print(first, [name for name in slow if name in sys.modules])
"""


def test_importing_the_package_loads_what_is_used() -> None:
    """Importing the package, or a room, loads no more than that; nor do an append and a read.

    pandas, which pyarrow's conversions of values load, takes a quarter of a second.
    """
    assert run(_LOADED) == "[] []\n"


# The package itself loads `read` and `repair`.
_FORMAT = {"errors", "version", "read", "repair", "spark"}
_TASK = _FORMAT | CORE | {"cache", "rooms", "stream"}
NEEDED = {
    "source": _FORMAT,
    "batch.planning": _TASK,
    "batch.slices": _TASK,
    "batch.writer": _TASK | {"write"},
    "streaming.sink": _TASK | {"write"},
}
_FORKED = """
import os, sys
import pyarrow, pyspark.sql.datasource
for module in sys.argv[1:]:
    if os.fork() == 0:
        __import__(f"segstore_ds.spark.{module}")
        print(module, *sys.modules, flush=True)
        os._exit(0)
    os.wait()
"""


def test_processes_of_spark_load_what_a_scan_or_an_append_needs() -> None:
    """After an idle minute Spark starts each of them anew: one that hands a plan on loads least."""
    for line in run(_FORKED, *NEEDED).splitlines():
        module, *names = line.split()
        ours = {name.split(".")[1] for name in names if name.startswith("segstore_ds.")}
        assert ours == NEEDED[module], module
        assert not {"pandas", "fsspec", "pyarrow.compute"} & {*names}, module


def test_functions_that_hold_the_package_can_be_sent_to_workers() -> None:
    """Spark sends them by cloudpickle, which takes a module by its name."""

    def task() -> tuple[object, object, object]:
        return segstore_ds, segstore_ds.spark, segstore_ds.read

    assert pickle.loads(cloudpickle.dumps(task))() == task()  # noqa: S301 - our own


def test_the_package_has_few_names() -> None:
    """What calls return is in `reports`, what needs pyspark in `spark`."""
    names = {*segstore_ds.__all__}
    assert {*dir(segstore_ds)} == names
    assert names > {*public.__all__}
    assert len(names) <= 30
    assert not names & {*reports.__all__}
    assert not [name for name in names if not hasattr(segstore_ds, name)]
