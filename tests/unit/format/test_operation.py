"""The names of operations are on disk: they never change, and later ones are carried through."""

from dataclasses import replace
from importlib import resources

import pytest

from segstore_ds.format.operation import Operation
from segstore_ds.format.root import Epoch, Root, decode_root, encode_root

FORMAT = resources.files("segstore_ds.format").joinpath("FORMAT.md").read_text(encoding="utf-8")
STORED = (
    "create append overwrite copy compact redact truncate seal restore drop tag untag reader "
    "pin unpin materialize set-properties change-schema follow promote repair purge upkeep "
    "merge lost"
)


def test_stored_operation_names_never_change() -> None:
    assert [operation.value for operation in Operation] == STORED.split()


@pytest.mark.parametrize("operation", Operation)
def test_format_page_describes_every_operation(operation: Operation) -> None:
    assert f"`{operation}`" in FORMAT


@pytest.mark.parametrize("operation", [Operation.MERGE, "an-operation-of-a-later-version"])
def test_root_reads_any_operation_as_text(operation: str) -> None:
    root = Root("s", 0, "t0", "", 1, "create", (Epoch(0, 0, "x", None),))
    read = decode_root(encode_root(replace(root, operation=operation)), where="log/0")
    assert read.operation == operation
    assert type(read.operation) is str
