"""The write cache knows bytes and channels, and nothing of streams."""

import ast
from pathlib import Path

import segstore_ds.cache

ALLOWED = ("segstore_ds.cache", "segstore_ds.errors")


def test_imports_neither_formats_nor_storage():
    for path in Path(segstore_ds.cache.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert not node.module.startswith("segstore_ds") or node.module.startswith(ALLOWED)
            elif isinstance(node, ast.Import):
                assert not any(name.name.startswith("segstore_ds") for name in node.names)
