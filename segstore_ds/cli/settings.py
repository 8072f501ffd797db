"""Storage options of a command: from its flag, the environment or a file; and opening streams."""

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import typer

import segstore_ds as segstore

VARIABLE = "SEGSTORE_STORAGE_OPTIONS"
FILE_VARIABLE = "SEGSTORE_CONFIG"


def parse_options(text: str, *, source: str) -> dict[str, Any]:
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


def find_config() -> Path:
    """Return where the config file is looked for."""
    if named := os.environ.get(FILE_VARIABLE):
        return Path(named).expanduser()
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "segstore" / "config.toml"


def storage_options(given: str | None) -> dict[str, Any] | None:
    """Return the storage options: of the flag, else of the environment, else of the config file."""
    if given is not None:
        return parse_options(given, source="--storage-options")
    if text := os.environ.get(VARIABLE):
        return parse_options(text, source=VARIABLE)
    path = find_config()
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8")).get("storage_options")
    except FileNotFoundError:
        if FILE_VARIABLE in os.environ:
            raise typer.BadParameter(f"{FILE_VARIABLE}: there is no file {path}") from None
        return None
    except ValueError:
        raise typer.BadParameter(f"{path} is not TOML") from None
    if not isinstance(found, dict | None):
        raise typer.BadParameter(f"{path}: storage_options must be a table")
    return found


def open_to_read(url: str, options: str | None) -> "segstore.Stream":
    """Open a stream for a command that writes nothing, so on any filesystem."""
    return segstore.open(url, storage_options=storage_options(options), single_writer=True)


def open_to_change(url: str, options: str | None) -> "segstore.Stream":
    """Open a stream for a command that commits."""
    return segstore.open(url, storage_options=storage_options(options))
