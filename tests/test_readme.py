"""README and pages: their code prints what it says, their tables are the program's."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from process_kit import plain_environment, spark_environment

from segstore_ds.compact.plan import PLAN_SCHEMA
from segstore_ds.options import table as options
from segstore_ds.read.find_streams import STREAMS_SCHEMA
from segstore_ds.read.metadata_tables import METADATA_TABLES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
# ```python is run, ```python spark too; any other word behind the fence only looks like code.
_BLOCK = re.compile(r"^```python( spark)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PRINTED = re.compile(r"^print\(.*\) +# ((?:[\d\[{]|True|False|None).*)$", re.MULTILINE)
DOCS = ROOT / "segstore_ds/docs"
PAGES = sorted(DOCS.rglob("*.md"))
TEXTS = {"README": README}
TEXTS |= {str(page.relative_to(DOCS).with_suffix("")): page.read_text() for page in PAGES}
PAGE_NAMES = [name for name in TEXTS if name != "README"]
# Spark's blocks are pasted one after another into one session, README's first.
SPARK_PAGES = ("README", "start", "spark", "sql", "streaming", "copies")
# Also run on the lowest versions, as README is.
SMOKE_PAGES = {"python", "maintenance", "copies", "reference"}
_WRITES_TO = "/tmp/"  # noqa: S108 - what the pages say; the tests put a folder of theirs there
# The release check gives an environment that holds the wheel alone, and nothing of the checkout.
_INSTALLED = os.environ.get("SEGSTORE_README_PYTHON", "")
_PATH = re.compile(r"`((?:tests|segstore_ds|benchmarks|\.ci)/[\w./-]*)`")
_PAGE_LINK = re.compile(r"\]\(segstore_ds/docs/(\w+)\.md[#)]")


def blocks(kind, name="README"):
    marks = [pytest.mark.smoke] if name in SMOKE_PAGES else []
    return [
        pytest.param(code, id=f"{name}: {code.strip().splitlines()[0]}", marks=marks)
        for found, code in _BLOCK.findall(TEXTS[name])
        if found.strip() == kind
    ]


# Run by one interpreter: each code in a namespace of its own.
_RUNNER = """
import contextlib, io, json, sys
printed = []
for code in json.load(open(sys.argv[1])):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        exec(compile(code, "a page", "exec"), {"__name__": "__main__"})
    printed.append(text.getvalue())
json.dump(printed, open(sys.argv[1], "w"))
"""


def run_codes(codes, folder):
    """Run codes as pasted, but for where they write; return what each printed."""
    assert all(_WRITES_TO in code for code in codes)
    file = folder / "codes.json"
    file.write_text(json.dumps([code.replace(_WRITES_TO, f"{folder}/") for code in codes]))
    environment = plain_environment() if _INSTALLED else spark_environment(PYTHONPATH=str(ROOT))
    done = subprocess.run(
        [_INSTALLED or sys.executable, "-c", _RUNNER, str(file)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(codes, json.loads(file.read_text()), strict=True))


def check_printed(code, text):
    expected = _PRINTED.findall(code)
    assert expected
    printed = iter(text.splitlines())
    for line in expected:
        assert line in printed, line


@pytest.fixture(scope="module")
def printed_by_readme(tmp_path_factory):
    return run_codes([p.values[0] for p in blocks("")], tmp_path_factory.mktemp("readme"))


@pytest.fixture(scope="module")
def printed_by_pages(tmp_path_factory):
    codes = [param.values[0] for name in PAGE_NAMES for param in blocks("", name)]
    return run_codes(codes, tmp_path_factory.mktemp("pages"))


@pytest.mark.smoke
@pytest.mark.parametrize("code", blocks(""))
def test_python_code_prints_what_its_comments_say(code, printed_by_readme):
    check_printed(code, printed_by_readme[code])


@pytest.mark.parametrize("code", [code for name in PAGE_NAMES for code in blocks("", name)])
def test_code_of_the_pages_prints_what_its_comments_say(code, printed_by_pages):
    check_printed(code, printed_by_pages[code])


@pytest.mark.slow
@pytest.mark.smoke
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_spark_code_prints_what_its_comments_say(tmp_path):
    """The blocks are pasted one after another into one session, as a reader would."""
    codes = [param.values[0] for name in SPARK_PAGES for param in blocks("spark", name)]
    if find_spec("pyspark.sql.streaming.datasource") is None:
        # Before Spark 4.2 AvailableNow is one batch, which closes no window, and there are no
        # queries over many streams.
        codes = [code for code in codes if "withWatermark" not in code and "/*" not in code]
    code = "\n".join(codes)
    check_printed(code, run_codes([code], tmp_path)[code])


def test_every_page_with_spark_code_is_run():
    assert {name for name in TEXTS if blocks("spark", name)} == {*SPARK_PAGES}


def test_no_two_blocks_make_the_same_stream():
    """Who pastes one page after the other meets no stream of an earlier one."""
    codes = [code for text in TEXTS.values() for _, code in _BLOCK.findall(text)]
    made = [name for code in codes for name in re.findall(r'create\("/tmp/([\w-]+)', code)]
    assert len(made) > 20
    assert sorted(made) == sorted({*made})


def shown_default(option):
    if option.default is None:
        return ""
    if option.kind == "bool":
        return f"`{option.default}`".lower()
    if option.kind == "bytes":
        for suffix, factor in (("g", 1 << 30), ("m", 1 << 20), ("k", 1 << 10)):
            if option.default % factor == 0:
                return f"`{option.default // factor}{suffix}`"
    if option.kind == "age":
        return f"`{option.default // 60}m`"
    return f"`{option.default}`"


@pytest.mark.parametrize(
    ("scope", "beside"),
    [(options.READ, None), (options.STREAM_READ, options.READ), (options.WRITE, None)],
)
def test_option_table_is_the_programs(scope, beside):
    shown = TEXTS["options"].split(f"<!-- options:{scope} -->\n")[1].split("\n<!-- /options -->")[0]
    head, line, *rows = shown.splitlines()
    assert (head, line) == ("| option | default | meaning |", "|---|---|---|")
    found = [re.fullmatch(r"\| `(\w+)` \| (.*?) \| (.+) \|", row).groups() for row in rows]
    assert [(name, default.strip()) for name, default, _ in found] == [
        (option.name, shown_default(option))
        for option in options.TABLE
        if scope in option.scopes and beside not in option.scopes
    ]
    meanings = {row.split("`")[1]: row for row in rows}
    assert all(
        TEXTS["options"].count(f"| `{name}` |") == TEXTS["options"].count(row)
        for name, row in meanings.items()
    )


@pytest.mark.parametrize(
    ("batch", "stream"),
    [(options.READ, options.STREAM_READ), (options.WRITE, options.STREAM_WRITE)],
)
def test_sentence_about_streams_leaves_out_what_they_do_not_take(batch, stream):
    (sentence,) = re.findall(rf"A streaming {batch} takes all of these but (.*)", TEXTS["options"])
    without = {
        option.name
        for option in options.TABLE
        if batch in option.scopes and stream not in option.scopes
    }
    assert {*re.findall(r"`(\w+)`", sentence)} == without


def test_sentence_about_many_streams_leaves_out_what_they_do_not_take():
    (sentence,) = re.findall(r"A read of many streams takes .* but (.*)", TEXTS["options"])
    reads = {options.READ, options.STREAM_READ}
    without = {
        option.name
        for option in options.TABLE
        if reads & {*option.scopes} and options.MANY not in option.scopes
    }
    assert {*re.findall(r"`(\w+)`", sentence)} == without


def test_metadata_tables_are_the_programs():
    rows = TEXTS["operate"].split("\n| table | columns |\n")[1].split("\n\n")[0]
    shown = dict(re.findall(r"^\| `(\w+)` \| [^`]*`([^`]*)`", rows, re.MULTILINE))
    schemas = {name: table.schema for name, table in METADATA_TABLES.items()} | {
        "compactionPlan": PLAN_SCHEMA,
        "streams": STREAMS_SCHEMA,
    }
    assert shown == {name: ", ".join(schema.names) for name, schema in schemas.items()}
    assert {*shown} == {*options.BY_NAME["metadata"].choices}


def test_each_of_the_two_commands_is_one_line():
    make, lines = "python3 -m venv .venv &&", README.splitlines()
    assert f"{make} . .venv/bin/activate && pip install '.[demo]' && segstore demo" in lines
    tests = ".venv/bin/python -m pytest -n 3 --dist loadfile"
    assert f"{make} .venv/bin/pip install '.[test]' && {tests}" in lines


def test_ci_installs_and_tests_as_the_readme_does():
    lines = [line.strip() for line in (ROOT / ".ci" / "run").read_text().splitlines()]
    assert """step "install" make_environment .ci-venv "$python" '.[test]'""" in lines
    assert """begin "release" .ci/release .ci-venv/bin/python""" in lines
    assert """step "tests" .ci-venv/bin/python -m pytest -n 3 --dist loadfile""" in lines


def test_every_page_is_linked_from_the_readme():
    """Pages of design are linked from their decisions."""
    assert {*_PAGE_LINK.findall(README)} == {name for name in PAGE_NAMES if "/" not in name}


def test_paths_that_readme_and_pages_name_exist():
    named = {path for text in TEXTS.values() for path in _PATH.findall(text)}
    assert named
    assert not [path for path in named if not (ROOT / path).exists()]
