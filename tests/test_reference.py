"""The reference pages: they name what is public, with the arguments and fields that it has."""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest
import typer

import segstore_ds as segstore
from segstore_ds import errors, public
from segstore_ds.cli import MEANINGS
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
    methods = ("stream.namespaces", "write.appender", "write.awaited", "stream.awaited")
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
                name = f"{'└ ' * depth}`{one.__name__}`{again}"
                code = f"[`{one.code}`](#{one.code.lower()})"
                rows.append(f"| {name} | {code} |")
                rows += below(one, depth + 1)
        return rows

    return below(errors.SegstoreError, 0)


def test_errors_are_the_programs():
    assert re.findall(r"^\| .*`\w+Error`.*$", ERRORS, re.MULTILINE) == error_rows()


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


def test_commands_of_the_pages_are_there():
    pages = "\n".join(page.read_text() for page in DOCS.rglob("*.md"))
    shown = re.findall(r"^segstore (\w+)", pages, re.MULTILINE)
    assert shown
    assert {*shown} <= {name.split()[0] for name in all_commands()}
