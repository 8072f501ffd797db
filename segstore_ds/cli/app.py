"""The commands of `segstore` in groups, and how their failures are reported."""

import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, get_args, get_origin

import typer
from typer.core import TyperGroup

import segstore_ds as segstore
from segstore_ds.cli import (
    BROKEN_PIPE,
    DAMAGED,
    FAILED,
    INTERRUPTED,
    NOT_CONFIRMED,
    RETRYABLE,
    care,
    change,
    look,
    names,
    rows,
)
from segstore_ds.cli.arguments import Json, Options, Run, Single, choose, spell_calls, spell_flags
from segstore_ds.cli.show import to_json
from segstore_ds.errors import FormatError, SegstoreError, UnsupportedVersionError
from segstore_ds.options.quantities import printable, printable_json

GROUPS: dict[str, tuple[Callable[..., None], ...]] = {
    "Look": look.VERBS,
    "Rows": rows.VERBS,
    "Names and copies": names.VERBS,
    "Change": change.VERBS,
    "Care": care.VERBS,
    "Learn": look.LEARN,
}
_RESCUES = ("verify", "repair", "salvage")


def _report_failure(failure: object, status: int, *, as_json: bool) -> None:
    if not as_json:
        typer.echo(f"segstore: {printable(str(failure))}", err=True)
        return
    facts: dict[str, object] = {"error": failure}
    if isinstance(failure, SegstoreError):
        facts = {"error": failure.fact, "code": failure.code, "fields": failure.fields}
        facts |= {"remedy": failure.remedy, "retryable": failure.retryable}
    typer.echo(printable_json(to_json(facts | {"status": status})), err=True)


class _Commands(TyperGroup):
    """Turns the errors of a command into one line on stderr and an exit status."""

    def invoke(self, ctx: Any) -> None:
        """Run a command; none has a result."""
        given = (*ctx._protected_args, *ctx.args)  # noqa: SLF001 - of the command
        as_json = "--json" in given or ctx.params.get("as_json")
        failure: object
        try:
            super().invoke(ctx)
            sys.stdout.flush()  # now: a failure at exit would set no exit status
        except SegstoreError as error:
            known, own = _options(ctx), _options(ctx)(ctx.invoked_subcommand or "")
            error.respell(lambda text: spell_flags(spell_calls(text, known), own))
            newer = isinstance(error, UnsupportedVersionError)
            if ctx.invoked_subcommand in _RESCUES and isinstance(error, FormatError) and not newer:
                status = DAMAGED
            else:
                status = RETRYABLE if error.retryable else FAILED
            failure = error
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # The reader of the output has ended; the flush at exit must not fail, too.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(BROKEN_PIPE) from None
        except typer.Abort as abort:  # a question that was not answered with yes
            if not str(abort):
                raise typer.Exit(NOT_CONFIRMED) from None
            failure, status = abort, NOT_CONFIRMED
        except Exception as error:
            if isinstance(error, typer.Exit):
                raise
            usage = getattr(error, "format_message", None)  # typer's own, about the arguments
            failure = usage() if usage else f"{type(error).__name__}: {error}"
            status = FAILED
        else:
            return
        _report_failure(failure, status, as_json=bool(as_json))
        raise typer.Exit(status)


def _options(ctx: Any) -> Callable[[str], Sequence[Any]]:
    """Return a function from a command's name to its options."""

    def options(name: str) -> Sequence[Any]:
        command = ctx.command.get_command(ctx, name)
        return command.params if command else ()

    return options


def _show_version(value: bool) -> None:
    if value:
        typer.echo(segstore.__version__)
        raise typer.Exit


def _base(
    ctx: typer.Context,
    *,
    storage_options: Options = None,
    as_json: Json = False,
    single_writer: Single = False,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Append-only event streams for Spark and Python, in plain folders."""
    ctx.obj = Run(as_json, storage_options, single_writer, _options(ctx))


def _run(
    ctx: typer.Context,
    *,
    storage_options: Options = None,
    as_json: Json = False,
    single_writer: Single = False,
) -> Run:
    """Return the run of a command; these flags may be before or after the command's name."""
    before: Run = ctx.obj
    given = before.given if storage_options is None else storage_options
    single = single_writer or before.single_writer
    return Run(as_json or before.as_json, given, single, before.commands)


# Parameters of commands that are built from flags shared by several commands.
_SHARED: dict[str, Callable[..., Any]] = {"chosen": choose, "run": _run}


def _option(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter as a flag, if a text annotates it: the help, or `METAVAR: help`."""
    kind, *notes = get_args(parameter.annotation) or ("",)
    if get_origin(parameter.annotation) is Annotated and isinstance(notes[0], str):
        metavar, text = re.findall(r"^(?:([A-Z.,:|]+): )?(.*)", notes[0])[0]
        name = f"--{parameter.name.replace('_', '-')}"
        option = typer.Option(name, metavar=metavar or None, help=text)
        parameter = parameter.replace(annotation=Annotated[kind, option])
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def _with_flags(verb: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose shared parameters are replaced by the flags that build them."""
    own = {**inspect.signature(verb).parameters}
    made = {
        name: inspect.signature(_SHARED[name]).parameters for name in _SHARED if own.pop(name, 0)
    }

    def called(**given: Any) -> None:
        shared = {
            name: _SHARED[name](**{flag: given.pop(flag) for flag in flags})
            for name, flags in made.items()
        }
        verb(**shared, **given)

    flags = [flag for flags in made.values() for flag in flags.values()]
    vars(called)["__signature__"] = inspect.Signature([*map(_option, (*own.values(), *flags))])
    called.__doc__ = verb.__doc__
    return called


def build_app() -> typer.Typer:
    """Return the app with all its commands."""
    app = typer.Typer(
        cls=_Commands,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_base)
    for title, verbs in GROUPS.items():
        for verb in verbs:
            app.command(verb.__name__, rich_help_panel=title)(_with_flags(verb))
    return app
