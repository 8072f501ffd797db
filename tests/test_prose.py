"""The pages are for readers of any first language: sentences and cells of tables are short."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "segstore_ds/docs").glob("*.md"))]
# One line each for every option, call, command and error: their texts are the program's.
LISTS = {"options.md", "reference_python.md", "command_line.md", "errors.md"}
MOST_WORDS = 25
MOST_WORDS_OF_A_CELL = 12


def plain(text: str) -> str:
    """Return a page without its code; a name in backticks is one word, and a link its text."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`\n]*`", "code", text))


def sentences(text: str) -> Iterator[str]:
    """Yield sentences, and the parts that colons and semicolons divide them into."""
    text = re.sub(r"^ *\|.*$|^#.*$", "\n", plain(text), flags=re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        yield from re.split(r"(?<=[.!?:;])\s+", " ".join(paragraph.split()).replace("**", ""))


def cells(text: str) -> Iterator[str]:
    """Yield the cells of tables."""
    for row in re.findall(r"^ *\|(.*)\| *$", plain(text), re.MULTILINE):
        yield from (cell.strip() for cell in row.split("|"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sentences_and_cells_are_short(page: Path) -> None:
    text = page.read_text()
    assert not [found for found in sentences(text) if len(found.split()) > MOST_WORDS]
    most = MOST_WORDS if page.name in LISTS else MOST_WORDS_OF_A_CELL
    assert not [found for found in cells(text) if len(found.split()) > most]


def test_what_is_long_is_found() -> None:
    """What the test above relies on."""
    long = "word " * MOST_WORDS
    assert max(len(s.split()) for s in sentences(f"- a: {long}`of code` here.\n- b\n")) == 27
    assert max(len(c.split()) for c in cells(f"| a | {long} |\n|---|---|\n")) == MOST_WORDS
    assert not any(len(s.split()) > 1 for s in sentences(f"```\n{long}\n```\n| {long} |\n# a\n"))
