"""Thousands of columns cost what they are many, not their square."""

import ast
from pathlib import Path

import segstore_ds as segstore

PACKAGE = Path(segstore.__file__).parent


COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


def searched(node: ast.AST) -> list[ast.expr]:
    """Return what every turn of a comprehension looks through in order, or makes anew."""
    return [
        right
        for part in ast.walk(node)
        if isinstance(part, ast.Compare)
        for operator, right in zip(part.ops, part.comparators, strict=True)
        if isinstance(operator, ast.In | ast.NotIn)
        and (
            (isinstance(right, ast.Attribute) and right.attr == "names")
            or (isinstance(right, ast.Call) and getattr(right.func, "id", "") == "set")
        )
    ]


def test_no_comprehension_searches_a_schemas_names() -> None:
    """`schema.names` is a list that pyarrow makes at every access: in a loop that is quadratic."""
    found = [
        f"{path.name}:{expression.lineno}"
        for path in PACKAGE.rglob("*.py")
        if "cli" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, COMPREHENSIONS)
        for expression in searched(node)
    ]
    assert found == []
