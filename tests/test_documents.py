"""DESIGN.md and FORMAT.md: what they list is what the code knows; what they name is there."""

import re
from pathlib import Path

from segstore_ds.format import root
from segstore_ds.log import operations

ROOT = Path(__file__).parents[1]
DESIGN = (ROOT / "segstore_ds/DESIGN.md").read_text()
FORMAT = (ROOT / "segstore_ds/format/FORMAT.md").read_text()
_ROW = re.compile(r"^\| (`[^|]+`) \| (.*) \|$", re.MULTILINE)
_WORD = re.compile(r"`([a-z_-]+)`")


def rows(text: str, start: str, end: str) -> dict[str, str]:
    """Return the rows of the table between two texts, by each name in the first column."""
    (part,) = re.findall(f"{re.escape(start)}(.*?){re.escape(end)}", text, re.DOTALL)
    return {name: row for names, row in _ROW.findall(part) for name in _WORD.findall(names)}


def named_by(operation: str, table: dict[str, str]) -> set[str]:
    """Return the words of a row and of the rows that it refers to, as in "as `append`"."""
    named = {*_WORD.findall(table[operation])}
    others = named & {*table} - {operation}
    return named.union(*(named_by(other, table) for other in others))


def test_operations_of_the_format_are_those_of_the_code():
    table = rows(FORMAT, "What an operation may change", "Each object of a stream")
    assert {*table} == operations._KNOWN | {"create", "repair"}
    for field, owners in operations._OWNERS.items():
        for operation in owners:
            assert field in named_by(operation, table), (operation, field)


def test_format_1_has_no_features():
    section = FORMAT.split("### 3.3 Features")[1].split("###")[0]
    assert "Format 1 has none" in section
    assert not root.READER_FEATURES | root.WRITER_FEATURES


def test_decision_numbers_have_no_gap_and_references_exist():
    numbers = [int(number) for number in re.findall(r"^## (\d+)\. ", DESIGN, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    sources = [*ROOT.rglob("segstore_ds/**/*.md"), *ROOT.rglob("segstore_ds/**/*.py")]
    sources += [*(ROOT / "tests").rglob("*.py"), ROOT / "README.md"]
    for source in sources:
        for number in re.findall(r"\bdecision (\d+)", source.read_text()):
            assert int(number) in numbers, source


def test_words_of_the_format_are_in_the_glossary():
    """FORMAT.md says that its words are those."""
    glossary = DESIGN.split("## Glossary")[1].split("## 1.")[0]
    defined = {*re.findall(r"\*\*([a-z ]+?)(?: / [a-z ]+)?\*\*", glossary)}
    words = "event offset cut head tail position generation frame segment epoch commit version root"
    words += " retired staged token reader tag pin clone origin follower primary entry feature"
    assert {*words.split(), "status part", "transaction id", "writer id", "write cache"} <= defined


def test_paths_that_the_documents_name_exist():
    found = re.findall(r"`((?:tests|segstore_ds|benchmarks)/[\w./-]*)`", DESIGN + FORMAT)
    assert found
    assert not [path for path in found if not (ROOT / path).exists()]
