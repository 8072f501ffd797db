"""Examples in the docstrings of what is public: each is run, on a small stream of its own.

Those of `segstore.spark` are run by `tests/spark/test_spark_docstrings.py`.
"""

import inspect

import pytest
from docstring_kit import run_example

import segstore_ds as segstore
from segstore_ds import public, reports
from segstore_ds.stream import namespaces
from segstore_ds.write.appender import LiveAppender

# Classes whose methods users call; of other values, only the class has an example, if any.
_CALLED = (segstore.Stream, segstore.Scan, segstore.ScanTask, segstore.NamedReader, LiveAppender)
_CALLED += tuple(getattr(namespaces, name) for name in ("Tags", "Readers", "Followers", "Pins"))
_CALLED += (namespaces.PublishedTables, namespaces.Settings)
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
