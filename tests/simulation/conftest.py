"""Options of the simulation: which seeds, how long, and who and what takes part."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulation")
    group.addoption("--seeds", default="", help="only these, such as 17 or 1000-2000")
    group.addoption("--hours", type=float, default=8.0, help="virtual hours of a seed")
    group.addoption("--actors", default="", help="only these, separated by commas")
    group.addoption("--faults", default=None, help="only these kinds, separated by commas")
