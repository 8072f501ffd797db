"""One run of a command: the flags that every command has, and the streams that it opens."""

import json
import os
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

import segstore_ds as segstore
from segstore_ds.cli.show import print_json, print_table, say

VARIABLE = "SEGSTORE_STORAGE_OPTIONS"
FILE_VARIABLE = "SEGSTORE_CONFIG"


@dataclass(frozen=True, slots=True)
class Run:
    """What the flags of every command say; `given` is that of storage options, and never shown."""

    as_json: bool = False
    given: str | None = None

    def options(self) -> dict[str, Any] | None:
        """Return the storage options of the flag, else of the environment, else of the config."""
        if self.given is not None:
            return _parse_options(self.given, source="--storage-options")
        if text := os.environ.get(VARIABLE):
            return _parse_options(text, source=VARIABLE)
        return _read_config()

    def read(self, url: str) -> "segstore.Stream":
        """Open a stream for a command that writes nothing, so on any filesystem."""
        return segstore.open(url, storage_options=self.options(), single_writer=True)

    def change(self, url: str) -> "segstore.Stream":
        """Open a stream for a command that commits."""
        return segstore.open(url, storage_options=self.options())

    def report(self, done: Any, *lines: str) -> None:
        """Print what a command did: its fields for programs, its lines or its text for people."""
        if self.as_json:
            print_json(done)
        else:
            say(*(lines or str(done).split("\n")))

    def table(self, batches: Iterable[Any], columns: Sequence[str] | None = None) -> None:
        """Print batches of rows as they come; `columns` are what people see, programs get all."""
        print_table(batches, columns, as_json=self.as_json)


def _parse_options(text: str, *, source: str) -> dict[str, Any]:
    """Return the JSON object in a text, or in the file that `@NAME` names.

    No message repeats the text: it may hold a secret.
    """
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
