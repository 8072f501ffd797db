"""The reference and the runbook: they name what is there, with its arguments, fields and flags."""

import dataclasses
import inspect
import re
import shlex
from pathlib import Path

import pytest
import typer

import segstore_ds as segstore
from segstore_ds import errors, public
from segstore_ds.cli import MEANINGS, arguments
from segstore_ds.cli.app import build_app
from segstore_ds.options import table as options
from segstore_ds.stream import namespaces
from segstore_ds.write.appender import LiveAppender

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "segstore_ds/docs"
HIDDEN = {"self", "clock", "spark_schema", "client", "how"}  # of tests and of connectors
REFERENCE = (DOCS / "reference.md").read_text()
ERRORS = (DOCS / "runbook.md").read_text()
COMMANDS = (DOCS / "command_line.md").read_text()


def public_names() -> dict[str, object]:
    """Return what is public, by the name that the reference shows it under."""
    found = {f"segstore_ds.{name}": getattr(public, name) for name in public.__all__}
    for room in (segstore.reports, segstore.spark):
        found |= {f"{room.__name__}.{name}": getattr(room, name) for name in room.__all__}
    return found


def test_reference_has_every_public_name_once():
    shown = re.findall(r"^::: (.+)$", REFERENCE, re.MULTILINE)
    assert len(shown) == len({*shown})
    assert {*public_names()} <= {*shown}
    methods = (
        "stream.namespaces",
        "stream.follow",
        "stream.awaited",
        "write.appender",
        "write.awaited",
    )
    rest = {name for name in shown if name not in public_names()}
    assert all(name.startswith(tuple(f"segstore_ds.{room}." for room in methods)) for name in rest)


def described(text: str, section: str) -> list[str]:
    """Return the names that a section of a docstring describes."""
    lines = inspect.cleandoc(text).split(f"\n{section}:\n")[1:]
    body = "".join(lines).split("\n\n")[0]
    return re.findall(r"^ {4}(\w+): ", body, re.MULTILINE)


def called() -> dict[str, object]:
    """Return the public functions, and the methods of a stream and of its parts."""
    found = {name: each for name, each in public_names().items() if inspect.isfunction(each)}
    named = (namespaces.Tags, namespaces.Readers, namespaces.Followers, namespaces.Settings)
    for cls in (segstore.Stream, segstore.Scan, segstore.NamedReader, LiveAppender, *named):
        found |= {
            f"{cls.__name__}.{name}": method
            for name, method in inspect.getmembers(cls, inspect.isfunction)
            if not name.startswith("_") and "segstore_ds" in inspect.getmodule(method).__name__
        }
    return found


@pytest.mark.parametrize("name", called())
def test_docstring_describes_the_arguments_in_their_order(name):
    function = called()[name]
    parameters = [each for each in inspect.signature(function).parameters if each not in HIDDEN]
    shown = [each for each in described(function.__doc__, "Args") if each not in HIDDEN]
    # Few arguments may be described by the sentences, or be those of another call.
    assert shown in (parameters, []), (shown, parameters)


@pytest.mark.parametrize(
    "value",
    [each for each in public_names().values() if dataclasses.is_dataclass(each)],
    ids=lambda value: value.__name__,
)
def test_docstring_describes_the_fields_in_their_order(value):
    fields = [field.name for field in dataclasses.fields(value) if not field.name.startswith("_")]
    text = value.__doc__
    shown = described(text, "Attributes")
    assert shown == fields or (not shown and len(fields) < 7), (shown, fields)


def test_layout_has_the_options_that_say_how_bytes_are_laid_out():
    """The reference says that its fields are write options under their own names."""
    snake = {
        re.sub(r"[A-Z]", lambda m: f"_{m[0].lower()}", option.name) for option in options.TABLE
    }
    assert {field.name for field in dataclasses.fields(segstore.Layout)} <= snake


def error_rows() -> list[str]:
    """Return the rows of the table of errors, a class before its kinds."""

    def below(cls: type, depth: int) -> list[str]:
        rows = []
        for one in vars(errors).values():
            if inspect.isclass(one) and cls in one.__bases__:
                again = " (retryable)" if one.retryable else ""
                name = f"{'  ' * depth}- `{one.__name__}`{again}"
                rows.append(f"{name}: [`{one.code}`](#{one.code.lower()})")
                rows += below(one, depth + 1)
        return rows

    return below(errors.SegstoreError, 0)


def test_errors_are_the_programs():
    assert re.findall(r"^ *- `\w+Error`.*$", ERRORS, re.MULTILINE) == error_rows()


def all_commands() -> dict[str, object]:
    """Return every command by its whole name."""
    found = {}
    for name, command in typer.main.get_command(build_app()).commands.items():
        inner = getattr(command, "commands", None)
        found |= {f"{name} {n}": c for n, c in inner.items()} if inner else {name: command}
    return found


def command_rows() -> list[str]:
    """Return the rows of the table of commands."""
    rows = []
    for name, command in all_commands().items():
        places = [param for param in command.params if param.param_type_name == "argument"]
        words = ["segstore", name, *(param.metavar for param in places)]
        rows.append(f"| `{' '.join(words)}` | {command.help} |")
    return rows


def test_commands_are_listed():
    table = COMMANDS.split("## Commands")[1].split("## ")[0]
    assert re.findall(r"^\| `segstore .*$", table, re.MULTILINE) == command_rows()
    statuses = COMMANDS.split("## Status")[1].split("## ")[0]
    assert [int(n) for n in re.findall(r"^\| (\d+) \|", statuses, re.MULTILINE)] == [*MEANINGS]
    assert all(f"| {meaning} |" in statuses for meaning in MEANINGS.values())


def test_every_command_has_json_and_asks_before_it_deletes():
    for name, command in all_commands().items():
        flags = {flag for param in command.params for flag in param.opts}
        assert "--json" in flags or name == "demo"
        assert "--yes" in flags or "--dry-run" not in flags


# --- the runbook ---


PAGES = ERRORS + (DOCS / "operate.md").read_text()
BLOCKS = re.findall(
    r"^```sh\n(.*?)^```$",
    "".join(p.read_text() for p in DOCS.glob("*.md")),
    re.MULTILINE | re.DOTALL,
)
NAMED = sorted(
    {
        *re.findall(r"`(segstore [^`]+)`", PAGES),
        *re.findall(r"^(?:.* \| )?(segstore .*)$", "\n".join(BLOCKS), re.MULTILINE),
    }
)


def parse(words: list[str]) -> None:
    """Parse a command line, and run nothing."""
    command, context = typer.main.get_command(build_app()), None
    name, words = words[0], words[1:]
    while hasattr(command, "resolve_command"):
        context = command.make_context(name, [*words], parent=context)
        name, command, words = command.resolve_command(context, words)
    command.make_context(name, [*words], parent=context)


def test_every_error_has_its_heading_and_no_other_has():
    section = ERRORS.split("\n## Errors\n")[1].split("\n## ")[0]
    classes = [each for each in vars(errors).values() if inspect.isclass(each)]
    known = [each for each in classes if errors.SegstoreError in each.__mro__[1:]]
    assert re.findall(r"^### (.+)$", section, re.MULTILINE) == [each.code for each in known]


def test_every_entry_says_what_is_at_risk_and_what_to_do():
    section = ERRORS.split("\n## Errors\n")[1].split("\n## ")[0]
    for entry in section.split("\n### ")[1:]:
        for said in ("- **What happened**: ", "- **Data at risk**: ", "- **Do**: "):
            assert entry.count(f"\n{said}") == 1, entry.splitlines()[0]


@pytest.mark.parametrize("line", [line for line in NAMED if line != "segstore --version"])
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


def test_calls_exist():
    named = {*re.findall(r"\bstream\.(?!svg)([a-z]\w*)", PAGES)}
    assert named
    assert not [name for name in named if not hasattr(segstore.Stream, name)]
    functions = {*re.findall(r"\bsegstore\.([A-Za-z]\w*)", PAGES)}
    assert functions <= {*segstore.__all__}


def test_commands_of_the_pages_are_there():
    pages = "\n".join(page.read_text() for page in DOCS.rglob("*.md"))
    shown = re.findall(r"^segstore (\w+)", pages, re.MULTILINE)
    assert shown
    assert {*shown} <= {name.split()[0] for name in all_commands()}
