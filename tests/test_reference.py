"""The reference pages: they name what is public, with the arguments and fields that it has."""

import dataclasses
import inspect
import re
from pathlib import Path

import typer

import segstore_ds as segstore
from segstore_ds import errors, options
from segstore_ds.cli.app import build_app
from segstore_ds.cli.status import MEANINGS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "segstore_ds/docs"
HIDDEN = {"self", "clock", "spark_schema"}  # of tests and of connectors
# Shown in an example.
IN_EXAMPLES = {"plan_write", "commit"}
NO_VALUES = {"Stream", "SegstoreError"}  # described in the text


REFERENCE = (DOCS / "reference_python.md").read_text()
FUNCTIONS, METHODS = REFERENCE.split("| `stream.` |")
ERRORS = (DOCS / "errors.md").read_text()
COMMANDS = (DOCS / "command_line.md").read_text()


def public(cls: type) -> dict[str, object]:
    names = (name for name in dir(cls) if not name.startswith("_"))
    return {name: inspect.getattr_static(cls, name) for name in names}


def shown(name: str, function: object) -> str:
    """Return a call as the reference shows it: what has a name ends with `=`."""
    texts = []
    for one in inspect.signature(function).parameters.values():
        named = one.default is not one.empty or one.kind is one.KEYWORD_ONLY
        stars = {one.VAR_KEYWORD: "**", one.VAR_POSITIONAL: "*"}.get(one.kind)
        text = f"{stars}{one.name}" if stars else f"{one.name}{'=' * named}"
        texts += [text] * (one.name not in HIDDEN)
    return f"| `{name}({', '.join(texts)})` |"


def test_every_public_name_is_listed():
    rooms = (segstore, segstore.spark, segstore.reports)
    for name, found in ((name, getattr(room, name)) for room in rooms for name in room.__all__):
        if inspect.isfunction(found):
            assert shown(name, found) in FUNCTIONS
        elif inspect.isclass(found) and name not in NO_VALUES:
            assert f"| `{name}` |" in METHODS, name


def test_every_stream_method_is_listed_with_its_arguments():
    for name, found in public(segstore.Stream).items():
        if isinstance(found, property):
            assert f"`{name}`" in FUNCTIONS, name
        elif name in IN_EXAMPLES:
            assert re.search(rf"\b{name}\b", METHODS), name
        else:
            assert shown(name, found) in METHODS


def test_values_are_listed_with_their_fields():
    for name, fields in re.findall(r"^\| `(\w+)` \| `([\w, ]+)` \|", METHODS, re.MULTILINE):
        cls = getattr(segstore.reports, name, None) or getattr(segstore, name)
        if issubclass(cls, segstore.OutcomeState):
            found = {member.name for member in cls}
        else:
            found = {key for key, one in public(cls).items() if isinstance(one, property)}
            if dataclasses.is_dataclass(cls):
                found |= {field.name for field in dataclasses.fields(cls)}
        assert {*fields.split(", ")} == found


def test_layout_has_the_options_that_say_how_bytes_are_laid_out():
    """The reference says that its fields are write options under their own names."""
    snake = {
        re.sub(r"[A-Z]", lambda m: f"_{m[0].lower()}", option.name) for option in options.TABLE
    }
    assert {field.name for field in dataclasses.fields(segstore.Layout)} <= snake
    flush = (options.FLUSH_BYTES, options.FLUSH_ROWS, options.FLUSH_SECONDS)
    assert flush == (64 << 20, 1_000_000, 10)
    assert "Flushes at 64 MiB, a million events or 10 seconds" in METHODS


def error_rows() -> list[str]:
    """Return how each row of the table of errors begins, a class before its kinds."""

    def below(cls: type, depth: int) -> list[str]:
        rows = []
        for one in vars(errors).values():
            if inspect.isclass(one) and cls in one.__bases__:
                again = " (retryable)" if one.retryable else ""
                name = f"{'└ ' * depth}`{one.__name__}`{again}"
                code = f"[`{one.code}`](runbook.md#{one.code.lower()})"
                rows.append(f"| {name} | {code} | {one.__doc__.splitlines()[0]} | ")
                rows += below(one, depth + 1)
        return rows

    return below(errors.SegstoreError, 0)


def test_errors_are_the_programs():
    rows = re.findall(r"^\| .*`\w+Error`.*$", ERRORS, re.MULTILINE)
    for row, begin in zip(rows, error_rows(), strict=True):
        assert row.startswith(begin)
        assert row != f"{begin}|"


EVERYWHERE = {"--storage-options", "--json", "-y"}


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
        kinds = [(param, param.param_type_name == "argument") for param in command.params]
        words = ["segstore", name, *(param.metavar for param, place in kinds if place)]
        flags = [flag for param, place in kinds if not place for flag in param.opts]
        shown = " ".join(f"`{flag}`" for flag in flags if flag not in EVERYWHERE)
        rows.append(f"| `{' '.join(words)}` | {command.help} | {shown} |")
    return rows


def test_commands_are_listed_with_their_flags():
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
