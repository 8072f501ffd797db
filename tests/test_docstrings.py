"""Examples in docstrings: each is run, those that are public on a small stream of their own.

Those of `segstore.spark` are run by `tests/spark/test_spark_docstrings.py`.
"""

import inspect
from doctest import DocTestFinder
from importlib import import_module
from pathlib import Path

import pytest
from docstring_kit import run_alone, run_example

import segstore_ds as segstore
from segstore_ds import public, reports
from segstore_ds.stream import namespaces
from segstore_ds.write.appender import LiveAppender

# Classes whose methods users call; of other values, only the class has an example, if any.
_CALLED = (segstore.Stream, segstore.Scan, segstore.ScanTask, segstore.NamedReader, LiveAppender)
_CALLED += tuple(getattr(namespaces, name) for name in ("Tags", "Readers", "Followers", "Pins"))
_CALLED += (namespaces.PublishedTables, namespaces.Settings, segstore.StreamSet)
# Shown by the example of another name, or inherited from a dict or a tuple.
_WITHOUT = {"commit", "close", "of", "between", "plan_part", "at_root", "count", "index"}
_WITHOUT |= {*dir(dict), *dir(tuple)} - {"count", "index"}


def examples():
    """Return every function and class that is public, and the methods that users call."""
    found = {name: getattr(public, name) for name in public.__all__}
    found |= {name: getattr(reports, name) for name in reports.__all__}
    for cls in _CALLED:
        found[cls.__name__] = cls
        for name, method in inspect.getmembers(cls, inspect.isfunction):
            if not name.startswith("_"):
                found[f"{cls.__name__}.{name}"] = method
    return found


PUBLIC = examples()
WITH_EXAMPLES = sorted(name for name, each in PUBLIC.items() if ">>>" in (each.__doc__ or ""))


def test_everything_that_is_called_has_an_example():
    called = {name for name, each in PUBLIC.items() if inspect.isfunction(each)}
    without = {name for name in called if name.rpartition(".")[2] in _WITHOUT}
    assert called - without <= {*WITH_EXAMPLES}


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_example_gives_what_it_says(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_example(name, PUBLIC[name].__doc__)


ROOT = Path(segstore.__file__).parent
ROOMS = sorted({path.relative_to(ROOT).parts[0].removesuffix(".py") for path in ROOT.rglob("*.py")})


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "spark"])
def test_examples_of_a_room_give_what_they_say(room):
    """Those of its own functions, which need no stream."""
    told = {each.__doc__ for each in PUBLIC.values()}
    files = [ROOT / f"{room}.py"] if (ROOT / f"{room}.py").exists() else (ROOT / room).rglob("*.py")
    for file in files:
        name = ".".join(file.relative_to(ROOT.parent).with_suffix("").parts)
        if name.endswith("__main__"):
            continue
        module = import_module(name.removesuffix(".__init__"))
        for found in DocTestFinder(exclude_empty=True).find(module):
            sources = "".join(example.source for example in found.examples)
            if sources and found.docstring not in told and "stream" not in sources:
                run_alone(found.name, found.docstring, found.globs)
