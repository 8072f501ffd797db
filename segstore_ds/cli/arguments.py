"""Arguments and flags that several commands have."""

import json
from typing import Annotated, Any

import typer

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
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Change nothing; show what would be deleted.")
]
Start = Annotated[str, typer.Option("--start", metavar="CUT", help="The first event.")]
End = Annotated[str, typer.Option("--end", metavar="CUT", help="The event after the last.")]
Columns = Annotated[
    str | None,
    typer.Option("--columns", "-c", metavar="A,B", help="Only these columns.", show_default=False),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="JSON",
        help='A condition, such as \'["n", ">", 3]\'; several must all hold.',
        show_default=False,
    ),
]
EventTimes = Annotated[
    str | None,
    typer.Option(
        "--event-time",
        metavar="START..END",
        help="Only events from START on and before END, by the time column.",
        show_default=False,
    ),
]
AsOf = Annotated[
    int | None,
    typer.Option("--version-as-of", metavar="N", help="As of this version.", show_default=False),
]
Offsets = Annotated[bool, typer.Option("--offsets", help="Add a column `offset`.")]
Rows = Annotated[int, typer.Option("--rows", "-n", min=0, help="How many.")]


def parse_conditions(where: list[str] | None) -> list[list[Any]] | None:
    """Return the conditions of `--where`; None for none."""
    try:
        return [json.loads(text) for text in where] if where else None
    except ValueError:
        raise typer.BadParameter('--where must be JSON, such as \'["n", ">", 3]\'') from None


def parse_event_time(text: str | None) -> tuple[str | None, str | None] | None:
    """Return the interval of `--event-time`, open where nothing is given; None for no interval.

    >>> parse_event_time("2026-11-20..")
    ('2026-11-20', None)
    """
    if text is None:
        return None
    start, dots, end = text.partition("..")
    if not dots:
        raise typer.BadParameter("--event-time must be START..END; either may be left out")
    return start.strip() or None, end.strip() or None
