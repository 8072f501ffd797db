"""Documents: what they list is what the code knows; what they name or link is there."""

import re
import tomllib
from pathlib import Path

import pytest
from object_servers import PROGRAMS

from segstore_ds.format import root
from segstore_ds.format.operation import OPERATIONS
from segstore_ds.storage.stores import STORES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DESIGN = (ROOT / "segstore_ds/DESIGN.md").read_text()
PAGES = sorted((ROOT / "segstore_ds/docs").rglob("*.md"))
NOTEBOOKS = sorted((ROOT / "segstore_ds/docs").rglob("*.ipynb"))
SOURCE = (ROOT / "segstore_ds/SOURCE.md").read_text()
GLOSSARY = (ROOT / "segstore_ds/docs/glossary.md").read_text()
TERMS = re.findall(r"^- \*\*([a-z ]+)\*\*: ", GLOSSARY, re.MULTILINE)
FORMAT = (ROOT / "segstore_ds/format/FORMAT.md").read_text()
RULES = sorted(ROOT.glob("segstore_ds/*/[A-Z]*.md"))  # of a room each; FORMAT.md is one
_ROW = re.compile(r"^(`[^|]+`) \| (.*)$", re.MULTILINE)
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
    assert {*table} == {*OPERATIONS, "create", "copy", "repair"}
    assert {"generation", "properties", "restored"} <= named_by("repair", table)
    for operation, rule in OPERATIONS.items():
        assert {*rule.owns.split()} <= named_by(operation, table), operation


def test_features_of_the_format_are_those_of_the_code():
    section = FORMAT.split("### 3.3 Features")[1].split("###")[0]
    known = {*re.findall(r"^`([a-z-]+)` \|", section, re.MULTILINE)}
    assert known == root.READER_FEATURES | root.WRITER_FEATURES


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
    words = "event offset cut head tail position generation frame segment epoch commit version root"
    words += " retired staged token reader tag pin clone origin follower primary entry feature"
    assert {*words.split(), "status part", "transaction id", "writer id", "write cache"} <= {*TERMS}


def test_paths_that_the_documents_name_exist():
    found = re.findall(r"`((?:tests|segstore_ds|benchmarks)/[\w./-]*)`", DESIGN + FORMAT)
    assert found
    assert not [path for path in found if not (ROOT / path).exists()]


def links(text: str) -> list[str]:
    """Return the targets of the links of a page that lead to files."""
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


LINKING = [
    ROOT / "README.md",
    *sorted((ROOT / ".github").glob("*.md")),
    ROOT / "segstore_ds/DESIGN.md",
    ROOT / "segstore_ds/SOURCE.md",
    *RULES,
    *PAGES,
    *NOTEBOOKS,
]


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.name)
def test_links_of_pages_resolve(page):
    for link in links(page.read_text()):
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target.read_text()), link


def pages_of(item: object) -> list[str]:
    """Return the pages of a part of the site's navigation."""
    if isinstance(item, str):
        return [item]
    parts = item.values() if isinstance(item, dict) else item
    return [page for part in parts for page in pages_of(part)]


def test_site_lists_every_page_once():
    site = tomllib.loads((ROOT / "segstore_ds/docs/zensical.toml").read_text())
    ours = [page.relative_to(ROOT / "segstore_ds") for page in [*PAGES, *RULES]]
    ours.remove(Path("data/README.md"))
    ours += [Path("docs") / each.with_suffix(".md").name for each in NOTEBOOKS]
    others = ["index.md", "contributing.md", "releasing.md", "DESIGN.md", "SOURCE.md"]
    assert sorted(pages_of(site["project"]["nav"])) == sorted([*map(str, ours), *others])


def test_tests_that_design_names_exist():
    texts = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    files = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    for page in (DESIGN, *(page.read_text() for page in PAGES)):
        assert {*re.findall(r"\btest_\w+\.py\b", page)} <= files
        for name in re.findall(r"`(test_\w+)`", page):
            assert any(f"def {name}(" in text for text in texts), name


def test_terms_of_the_glossary_are_used():
    pages = [page.read_text() for page in PAGES if page.name != "glossary.md"]
    texts = (README, FORMAT, DESIGN, *pages)
    assert len(TERMS) == len({*TERMS})
    assert not [term for term in TERMS if not any(term in text for text in texts)]


def test_files_that_the_source_page_names_exist():
    named = re.findall(r"`([\w/]+\.(?:py|md))`", SOURCE)
    assert named
    assert not [path for path in named if not (ROOT / "segstore_ds" / path).is_file()]
    tasks = SOURCE.partition("\n## If you want to")[2].partition("\n## ")[0].split("\n- ")[1:]
    assert tasks
    assert all(len({*re.findall(r"`([\w/]+\.(?:py|md))`", task)}) <= 6 for task in tasks)


def test_servers_and_least_versions_of_the_stores_page_are_those_of_the_code():
    page = (ROOT / "segstore_ds/docs/stores.md").read_text()
    for program in PROGRAMS:
        assert f"| {program.name} | {program.version}" in page
    for store in STORES.values():
        for package, least in store.least_versions.items():
            assert f"{package} {least}" in page
