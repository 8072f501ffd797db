"""The runbook: a heading for every error, and every command and call that it names is there."""

import inspect
import re
import shlex
from pathlib import Path

import pytest
import typer

import segstore_ds as segstore
from segstore_ds import errors
from segstore_ds.cli import arguments
from segstore_ds.cli.app import build_app

DOCS = Path(__file__).parents[1] / "segstore_ds/docs"
RUNBOOK = (DOCS / "runbook.md").read_text()
PAGES = RUNBOOK + (DOCS / "operate.md").read_text()
BLOCKS = re.findall(
    r"^```sh\n(.*?)^```$",
    "".join(p.read_text() for p in DOCS.glob("*.md")),
    re.MULTILINE | re.DOTALL,
)
COMMANDS = sorted(
    {
        *re.findall(r"`(segstore [^`]+)`", PAGES),
        *re.findall(r"^(?:.* \| )?(segstore .*)$", "\n".join(BLOCKS), re.MULTILINE),
    }
)


def codes() -> list[str]:
    """Return the codes of all errors, in the order of errors.py."""
    classes = [found for found in vars(errors).values() if inspect.isclass(found)]
    return [
        found.code
        for found in classes
        if issubclass(found, errors.SegstoreError) and found is not errors.SegstoreError
    ]


def parse(words: list[str]) -> None:
    """Parse a command line, and run nothing."""
    command, context = typer.main.get_command(build_app()), None
    name, words = words[0], words[1:]
    while hasattr(command, "resolve_command"):
        context = command.make_context(name, [*words], parent=context)
        name, command, words = command.resolve_command(context, words)
    command.make_context(name, [*words], parent=context)


def test_every_error_has_its_heading_and_no_other_has():
    section = RUNBOOK.split("\n## Errors\n")[1].split("\n## ")[0]
    assert re.findall(r"^### (.+)$", section, re.MULTILINE) == codes()


def test_every_entry_says_what_is_at_risk_and_what_to_do():
    section = RUNBOOK.split("\n## Errors\n")[1].split("\n## ")[0]
    for entry in section.split("\n### ")[1:]:
        for said in ("- **What happened**: ", "- **Data at risk**: ", "- **Do**: "):
            assert entry.count(f"\n{said}") == 1, entry.splitlines()[0]


@pytest.mark.parametrize("line", [line for line in COMMANDS if line != "segstore --version"])
def test_commands_parse(line):
    """Also those of blocks of any page, up to what is the shell's."""
    words = shlex.split(line, comments=True)
    end = min((words.index(sign) for sign in (">", "|", "&&") if sign in words), default=None)
    parse(words[:end])


def test_commands_in_errors_have_their_verbs_and_flags():
    """Those of the program's own texts, with prose around them."""
    app, found = typer.main.get_command(build_app()), 0
    for path in DOCS.parent.rglob("*.py"):
        for verb, rest in re.findall(r"segstore (\w+) \{[^}]*\}([^\"\n]*)", path.read_text()):
            known = {flag for param in app.commands[verb].params for flag in param.opts}
            assert {*re.findall(r"--[\w-]+", rest)} <= known, (path.name, verb, rest)
            found += 1
    assert found > 5
    for line in arguments.COMMANDS.values():  # what calls of Python are called there
        flags = {flag for param in app.commands[line.split()[0]].params for flag in param.opts}
        assert {*re.findall(r"--[\w-]+", line)} <= flags, line


@pytest.mark.parametrize("line", ["segstore verfy u", "segstore compact u --yess", "segstore drop"])
def test_wrong_commands_do_not_parse(line):
    """What the test above relies on."""
    with pytest.raises(Exception, match=r"No such|Missing"):
        parse(shlex.split(line))


def test_calls_exist():
    named = {*re.findall(r"\bstream\.(?!svg)([a-z]\w*)", PAGES)}
    assert named
    assert not [name for name in named if not hasattr(segstore.Stream, name)]
    functions = {*re.findall(r"\bsegstore\.([A-Za-z]\w*)", PAGES)}
    assert functions <= {*segstore.__all__}
