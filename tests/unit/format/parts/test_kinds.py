"""Blobs come back, and refuse what is not one."""

import json

import pytest

from segstore_ds.errors import CorruptionError
from segstore_ds.format.parts.kinds import RETIRED, WRITERS
from segstore_ds.format.root import Retired, Writer


def test_blobs_come_back():
    writers = {"etl": Writer("query", 4, 9, 5, 30, "AAECAwQFBgc="), "ärger": Writer("", 0, 2, 0, 0)}
    assert WRITERS.decode(WRITERS.encode(writers), where="x") == writers
    retired = (
        Retired("segment", "t/a", 3, 17),
        Retired("status", f"status/{3:020d}-segments-{'a' * 32}", 4, 18),
    )
    assert RETIRED.decode(RETIRED.encode(retired), where="x") == retired


@pytest.mark.parametrize(
    "value", [None, 3, "x", [[]], {"a": []}, {"a": [1]}, [["segment", "../x", 1, 1]]]
)
def test_blobs_that_hold_something_else_are_refused(value):
    body = json.dumps(value).encode()
    with pytest.raises(CorruptionError):
        RETIRED.decode(body, where="x")
    with pytest.raises(CorruptionError):
        WRITERS.decode(body, where="x")
    with pytest.raises(CorruptionError):
        WRITERS.decode(b"{", where="x")
