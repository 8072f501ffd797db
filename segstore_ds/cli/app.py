"""The commands of `segstore` in groups, and what a failure of one ends with."""

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import segstore_ds as segstore
from segstore_ds.cli import care, change, learn, look, rows
from segstore_ds.cli.arguments import spell_flags
from segstore_ds.cli.status import (
    BROKEN_PIPE,
    DAMAGED,
    FAILED,
    INTERRUPTED,
    NOT_CONFIRMED,
    RETRYABLE,
)
from segstore_ds.errors import FormatError, SegstoreError, UnsupportedVersionError
from segstore_ds.options.printable import printable

GROUPS: dict[str, tuple[Callable[..., None], ...]] = {
    "Look": look.VERBS,
    "Rows": rows.VERBS,
    "Change": change.VERBS,
    "Care": care.VERBS,
    "Learn": learn.VERBS,
}
_RESCUES = ("verify", "repair", "salvage")


class _Commands(TyperGroup):
    """Turns what a command raises into one line on stderr and a status."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except SegstoreError as error:
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            options = command.params if command else ()
            error.respell(lambda text: spell_flags(text, options))
            _complain(error)
            newer = isinstance(error, UnsupportedVersionError)
            if ctx.invoked_subcommand in _RESCUES and isinstance(error, FormatError) and not newer:
                raise typer.Exit(DAMAGED) from None
            raise typer.Exit(RETRYABLE if error.retryable else FAILED) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # The reader of the output is gone; flushing at exit must not fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(BROKEN_PIPE) from None
        except typer.Abort:  # a question that was not answered
            raise typer.Exit(NOT_CONFIRMED) from None
        except Exception as error:
            if hasattr(error, "exit_code"):  # typer's own, which it prints
                if message := getattr(error, "message", None):  # help has several lines
                    vars(error)["message"] = "\n".join(map(printable, message.split("\n")))
                raise
            _complain(f"{type(error).__name__}: {error}")
            raise typer.Exit(FAILED) from None


def _complain(text: object) -> None:
    typer.echo(f"segstore: {printable(str(text))}", err=True)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(segstore.__version__)
        raise typer.Exit


def _base(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Append-only event streams next to Spark."""


def build_app() -> typer.Typer:
    """Return the app with all its commands."""
    app = typer.Typer(
        cls=_Commands,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_base)
    for title, verbs in GROUPS.items():
        for verb in verbs:
            app.command(verb.__name__.rstrip("_"), rich_help_panel=title)(verb)
    for noun, (text, parts) in change.NOUNS.items():
        inner = typer.Typer(cls=_Commands, no_args_is_help=True)
        for name, part in parts.items():
            inner.command(name)(part)
        app.add_typer(inner, name=noun, rich_help_panel="Change", help=text)
    return app
