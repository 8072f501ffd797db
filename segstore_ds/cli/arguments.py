"""Arguments and flags of several commands, the spelling of errors as commands, and `Run`."""

import json
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import segstore_ds as segstore
from segstore_ds.cli.show import print_json, print_table, say
from segstore_ds.options.quantities import DURATIONS_TAKEN, SIZES_TAKEN

Url = Annotated[
    str, typer.Argument(metavar="URL", help="The stream: a folder, s3://..., gs://..., abfs://...")
]
Cut = Annotated[
    str,
    typer.Argument(
        metavar="CUT",
        help="An offset, head, tail, version:N, tag:NAME, reader:NAME, or a time with a zone.",
    ),
]
Options = Annotated[
    str | None,
    typer.Option(
        "--storage-options",
        metavar="JSON",
        help="For the filesystem, or @FILE; env:NAME values allowed.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Single = Annotated[
    bool, typer.Option("--single-writer", help="Promise that nobody else writes meanwhile.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Change nothing; show what would be deleted.")
]
Start = Annotated[str, typer.Option("--start", metavar="CUT", help="The first event.")]
End = Annotated[str, typer.Option("--end", metavar="CUT", help="The event after the last.")]
Where = Annotated[
    list[str] | None,
    typer.Option(metavar="FILTER", help="Only events for which this holds, such as 'n > 3'."),
]

# A Python argument in an error's text, but not inside a call.
_PYTHON = re.compile(r"(?<![\w.(])(?<!, )(?P<name>[a-z_]+)=(?:True\b|url\b|(['\"])(?P<text>.*?)\2)")
# What errors say of Python, and what a command line takes instead.
PHRASES = {
    DURATIONS_TAKEN: "an age such as 7d, with one of the units s, m, h, d and w",
    SIZES_TAKEN: "a size such as 10g: k, m, g and t are powers of 1024",
    "a datetime with a time zone, or a string like": "a time with a zone, like",
    "; only cuts may be relative, like end='-1h'": "",
    ", or set fail_on_data_loss=False to continue without them": "",
    " (in Python of stream.readers.register)": "",
    "stream.readers lists": "segstore readers URL lists",
    "register or follow it with start='head'": "run segstore readers URL --reset NAME head",
}
_NAME = re.compile(r"(?<![\w.(])(?<!, )[a-z]+(?:_[a-z]+)+\b(?![=(])")
VARIABLE = "SEGSTORE_STORAGE_OPTIONS"
FILE_VARIABLE = "SEGSTORE_CONFIG"


def spell_flags(text: str, options: Iterable[Any]) -> str:
    """Return an error's text with Python arguments replaced by a command's flags.

    >>> from types import SimpleNamespace
    >>> move = SimpleNamespace(name="move", opts=["--move"])
    >>> spell_flags("move it with move=True, or set copy=True", [move])
    'move it with --move, or set copy=True'
    """
    known = {option.name: option.opts[0] for option in options}
    for phrase, ours in PHRASES.items():
        text = text.replace(phrase, ours)
    # A name with an underscore is no English word, so it is an argument wherever it occurs.
    text = _NAME.sub(lambda found: known.get(found[0], found[0]), text)

    def spell(found: re.Match[str]) -> str:
        flag, value = known.get(found["name"]), found["text"]
        if flag is None:  # a value of `mode` may be a flag of its own
            return known.get(value, found[0]) if found["name"] == "mode" else found[0]
        if found[0].endswith("=url"):
            return f"{flag} URL"
        return flag if value is None else f"{flag} {shlex.quote(value)}"

    return _PYTHON.sub(spell, text)


# Python calls that an error's text may advise, and their commands with arguments.
COMMANDS = {
    "create": "create URL",
    "drop": "drop URL",
    "list_streams": "ls FOLDER",
    "open": "info URL",
    "repair": "repair URL",
    "salvage": "salvage URL TARGET",
    "verify": "verify URL",
    "compact": "compact URL",
    "copy_to": "copy URL TARGET",
    "history": "history URL",
    "maintain": "maintain URL",
    "publish": "publish URL",
    "read": "cat URL",
    "redact": "redact URL",
    "restore": "restore URL VERSION",
    "retain": "retain URL",
    "truncate": "truncate URL CUT",
    "materialize": "materialize URL",
    "change_schema": "columns URL",
    "followers.add": "followers URL --add FOLDER",
    "followers.promote": "followers URL --promote",
    "followers.remove": "followers URL --remove FOLDER",
    "pins.release": "pins URL --release NAME",
    "published.remove": "publish URL --remove",
    "published.remove_latest": "publish URL --latest-by COLUMNS --remove",
    "readers.register": "cat URL -f --reader NAME",
    "readers.release": "readers URL --release NAME",
    "readers.reset": "readers URL --reset NAME CUT",
    "settings.update": "settings URL",
    "tags.delete": "tag URL NAME --delete",
    "tags.set": "tag URL NAME CUT",
}
_DEFAULTS = {"confirm", "mode"}  # what a command does without a flag
_QUOTED = re.compile(r"'([^']+)'")
_GIVES = {"None": "none", "...": "VALUE"}
_CALL = re.compile(r"(?<![\w.])(?:(?:segstore|stream)\.)?([a-z_]+(?:\.[a-z_]+)?)\(([^()]*)\)")
_GIVEN = re.compile(r"([a-z_]+)=([^,]+)")


def spell_calls(text: str, options_of: Callable[[str], Iterable[Any]]) -> str:
    """Return an error's text with Python calls replaced by commands, if there are any.

    >>> spell_calls("see segstore.verify(url); or tags.delete('v1')", lambda _: ())
    'see segstore verify URL; or segstore tag URL v1 --delete'
    """

    def spell(found: re.Match[str]) -> str:
        line, given = COMMANDS.get(found[1]), dict(_GIVEN.findall(found[2]))
        if line is None:
            return found[0]
        if found[1] == "settings.update" and "expiry" in given:
            age = "never" if given["expiry"] == "None" else "AGE"
            return f"segstore redact URL --columns COLUMN --after {age}"
        if found[1] == "readers.register" and "start" in given:  # of one that lost events
            line = COMMANDS["readers.reset"].replace("CUT", given.pop("start").strip("'"))
        if (named := _QUOTED.match(found[2])) is not None:
            line = line.replace("NAME", shlex.quote(named[1]))
        flags = {option.name: option.opts[0] for option in options_of(line.partition(" ")[0])}
        given = {name: it for name, it in given.items() if name in flags or name not in _DEFAULTS}
        if not given.keys() <= flags.keys():
            return found[0]
        words = [
            flags[name] if value == "True" else f"{flags[name]} {_GIVES.get(value, value)}"
            for name, value in given.items()
        ]
        return " ".join(("segstore", line, *words))

    return _CALL.sub(spell, text)


def only_filter(where: list[str] | None) -> str | None:
    """Return the filter of `--where`; refuses an empty one, or several."""
    if where is not None and (len(where) > 1 or not where[0].strip()):
        raise typer.BadParameter("give one --where, with its conditions joined by 'and'")
    return where[0] if where else None


def _parse_event_time(text: str | None) -> tuple[str | None, str | None] | None:
    """Return the interval of `--event-time`, with None for an open end; None without the flag.

    >>> _parse_event_time("2026-11-20..")
    ('2026-11-20', None)
    """
    if text is None:
        return None
    start, dots, end = text.partition("..")
    if not dots:
        raise typer.BadParameter("--event-time must be START..END; either may be left out")
    return start.strip() or None, end.strip() or None


def choose(
    *,
    start: Start = "head",
    end: End = "tail",
    columns: Annotated[
        str | None, typer.Option("--columns", "-c", metavar="A,B", help="Only these columns.")
    ] = None,
    where: Where = None,
    event_time: Annotated[
        str | None, "START..END: Only events from START on and before END, by the time column."
    ] = None,
    offsets: Annotated[bool, "Add a column `offset`."] = False,
    as_of: Annotated[
        str | None, "N|TIME|tag:NAME: As of this version, the newest one at a time, or a kept one."
    ] = None,
) -> dict[str, Any]:
    """Return the arguments of `Stream.read` for the flags of commands that read."""
    return {
        "start": start,
        "end": end,
        "columns": columns.split(",") if columns else None,
        "filters": only_filter(where),
        "event_time": _parse_event_time(event_time),
        "offset_column": "offset" if offsets else None,
        "as_of": int(as_of) if as_of and as_of.isdecimal() else as_of,
    }


@dataclass(frozen=True, slots=True)
class Run:
    """The flags of every command; `given` has the storage options, and is never printed."""

    as_json: bool = False
    given: str | None = None
    single_writer: bool = False  # for filesystems that are refused
    commands: Callable[[str], Iterable[Any]] = lambda _name: ()  # a command's options

    def spell(self, text: str) -> str:
        """Return an error's text, as a row or a line has it, with commands for calls."""
        return spell_calls(text, self.commands)

    def options(self) -> dict[str, Any] | None:
        """Return the storage options of the flag, else of the environment, else of the config."""
        if self.given is not None:
            return _parse_options(self.given, source="--storage-options")
        if text := os.environ.get(VARIABLE):
            return _parse_options(text, source=VARIABLE)
        return _read_config()

    def read(self, url: str) -> "segstore.Stream":
        """Open a stream for a command that writes nothing, on any filesystem."""
        return segstore.open(url, storage_options=self.options(), single_writer=True)

    def change(self, url: str) -> "segstore.Stream":
        """Open a stream for a command that commits."""
        return segstore.open(url, **self.how())

    def how(self) -> dict[str, Any]:
        """Return the arguments of calls that write to a location."""
        return {"storage_options": self.options(), "single_writer": self.single_writer}

    def report(self, done: Any, *lines: str) -> None:
        """Print a command's result: its fields as JSON, otherwise `lines` or its text."""
        if self.as_json:
            print_json(done)
        else:
            say(*(lines or str(done).split("\n")))

    def table(self, batches: Iterable[Any], columns: Sequence[str] | None = None) -> None:
        """Print batches of rows as they come; JSON has all columns, a table only `columns`."""
        print_table(batches, columns, as_json=self.as_json)


def _parse_options(text: str, *, source: str) -> dict[str, Any]:
    """Return the JSON object in a text or in the file `@NAME`; errors do not show its content."""
    try:
        if text.startswith("@"):
            text = Path(text[1:]).expanduser().read_text(encoding="utf-8")
        value = json.loads(text)
    except OSError as error:
        raise typer.BadParameter(f"{source}: the file can't be read: {error.strerror}") from None
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{source} must be a JSON object, or @FILE with one")
    return value


def _read_config() -> dict[str, Any] | None:
    named = os.environ.get(FILE_VARIABLE)
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    path = Path(named).expanduser() if named else Path(base, "segstore", "config.toml")
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8")).get("storage_options")
    except FileNotFoundError:
        if named:
            raise typer.BadParameter(f"{FILE_VARIABLE}: there is no file {path}") from None
        return None
    except ValueError:
        raise typer.BadParameter(f"{path} is not TOML") from None
    if not isinstance(found, dict | None):
        raise typer.BadParameter(f"{path}: storage_options must be a table")
    return found
