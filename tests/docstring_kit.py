"""Runs an example of a docstring on a small stream of its own, in the current folder."""

import doctest
from typing import Any

import pyarrow as pa

import segstore_ds as segstore


def run_example(name: str, docstring: str, **names: Any) -> None:
    """Run the example, which also knows `names`; fails with what doctest says."""
    stream = segstore.create("hello", like={"user": "ada", "n": 1})
    stream.append([{"user": user, "n": n} for n, user in enumerate(("ada", "bob", "eve"), 1)])
    run_alone(name, docstring, {"segstore": segstore, "pa": pa, "stream": stream} | names)


def run_alone(name: str, docstring: str, names: dict[str, Any]) -> None:
    """Run an example that needs no stream."""
    test = doctest.DocTestParser().get_doctest(docstring, names, name, None, 0)
    said: list[str] = []
    doctest.DocTestRunner().run(test, out=said.append)
    assert not said, "".join(said)
