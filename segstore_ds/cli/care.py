"""Commands that take care of a stream: compact, retain, purge, vacuum, maintain, verify, repair."""

from typing import Annotated

import typer

import segstore_ds as segstore
from segstore_ds.cli import settings
from segstore_ds.cli.arguments import DryRun, End, Json, Options, Url, Yes
from segstore_ds.cli.progress import shown
from segstore_ds.cli.show import Table, ask, report, say
from segstore_ds.cli.status import DAMAGED


def _seconds(name: str, text: str) -> float:
    from segstore_ds.options.arguments import check_duration

    return float(check_duration(name, text) or 0)


def compact(
    url: Url,
    *,
    start: Annotated[str | None, typer.Option(metavar="CUT", help="Where to begin.")] = None,
    end: End = "tail",
    mode: Annotated[str, typer.Option(help="merge, stitch or split.")] = "merge",
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Replace runs of small segments by a few large ones; events and offsets stay."""
    stream = settings.open_to_change(url, storage_options)
    with shown("compacting") as progress:
        done = stream.compact(start, end, mode=mode, progress=progress)
    text = f"{done.segments_before} segments became {done.segments_after}, at {done.version}"
    report(done, text if done.commits else "nothing to do", as_json=as_json)


def retain(
    url: Url,
    *,
    max_bytes: Annotated[
        str | None,
        typer.Option(
            help="Drop the oldest segments while the rest is larger, such as 10g.",
        ),
    ] = None,
    max_age: Annotated[
        str | None, typer.Option(help="Drop events that were committed longer ago, such as 7d.")
    ] = None,
    max_event_age: Annotated[
        str | None,
        typer.Option(
            help="Drop what lies before the first event whose own time is within that time."
        ),
    ] = None,
    min_bytes: Annotated[str | None, typer.Option(help="Keep at least so much.")] = None,
    min_age: Annotated[
        str | None, typer.Option(help="Keep events committed within that time.")
    ] = None,
    ignore_readers: Annotated[
        bool, typer.Option("--ignore-readers", help="Also what tags and live readers need.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Drop the oldest events; without a maximum those that every live reader is done with."""
    stream = settings.open_to_change(url, storage_options)
    policy = {"max_bytes": max_bytes, "max_age": max_age, "respect_readers": not ignore_readers}
    policy |= {"min_bytes": min_bytes, "min_age": min_age, "max_event_age": max_event_age}
    planned = stream.retain(policy, dry_run=True)
    if dry_run:
        report(planned, f"would have {planned}", as_json=as_json)
        return
    if planned.dropped:
        ask(f"Drop {planned.dropped:,} events of {stream.url}?", yes=yes)
    report(stream.retain(policy), as_json=as_json)


def purge(
    url: Url,
    *,
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="Superseded longer ago, such as 30d.")
    ] = "30d",
    keep_versions: Annotated[int, typer.Option(min=1, help="Always keep so many.")] = 1,
    dry_run: DryRun = False,
    yes: Yes = False,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Forget old versions; their events and the history stay."""
    stream = settings.open_to_change(url, storage_options)
    age = _seconds("older_than", older_than)
    found = stream.purge(older_than_s=age, keep_versions=keep_versions, dry_run=True)
    if not dry_run:
        ask(f"Forget the versions of {stream.url} before {found.log_start}?", yes=yes)
        found = stream.purge(older_than_s=age, keep_versions=keep_versions)
    report(found, as_json=as_json)


def vacuum(
    url: Url,
    *,
    grace: Annotated[
        str, typer.Option(metavar="AGE", help="How long dropped objects stay for old readers.")
    ] = "7d",
    short_grace: Annotated[
        bool, typer.Option("--short-grace", help="Allow a grace below a day: nobody needs it.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Delete objects that no version, clone or running job can need."""
    stream = settings.open_to_change(url, storage_options)
    seconds = _seconds("grace", grace)
    found = stream.vacuum(grace_s=seconds, short_grace=short_grace)
    if not dry_run:
        if found.deleted:
            size = f"{len(found.deleted)} objects, {found.bytes:,} B"
            ask(f"Delete {size} of {stream.url}?", yes=yes)
        with shown("deleting", "objects") as progress:
            found = stream.vacuum(
                dry_run=False, grace_s=seconds, short_grace=short_grace, progress=progress
            )
    report(found, as_json=as_json)


def maintain(
    url: Url,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Forget old versions and delete what nothing needs, as the stream's upkeep would."""
    stream = settings.open_to_change(url, storage_options)
    if dry_run:
        # What takes storage, and until when each of it is kept: the rest is what would go.
        Table(as_json=as_json).batches(stream.metadata("storage"))
        return
    ask(f"Forget old versions of {stream.url}, and delete what nothing needs?", yes=yes)
    report(stream.maintain(), as_json=as_json)


def verify(url: Url, *, storage_options: Options = None, as_json: Json = False) -> None:
    """Read a whole stream and say what is wrong where; status 1 for damage."""
    options = settings.storage_options(storage_options)
    with shown("verifying") as progress:
        found = segstore.verify(url, storage_options=options, progress=progress)
    if as_json:
        report(found, as_json=True)
    else:
        say(
            f"verified {found.versions:,} versions, {found.segments:,} segments, "
            f"{found.frames:,} frames, {found.rows:,} events"
        )
        for path in found.leftovers:
            unclaimed = path in found.unclaimed
            kind = "staged, or of a commit that is gone" if unclaimed else "leftover, no damage"
            say(f"{kind}: {path}")
        for problem in found.problems:
            older = problem.version is not None
            need = f" (needed as of version {problem.version} and before)" if older else ""
            say(f"WRONG {problem.where}: {problem.what}{need}")
        say("sound" if found.ok else f"damaged: {len(found.problems)} problems")
    if not found.ok:
        raise typer.Exit(DAMAGED)


def repair(
    url: Url,
    *,
    allow_loss: Annotated[
        bool, typer.Option("--allow-loss", help="Go on without newest commits that are lost.")
    ] = False,
    allow_promoted: Annotated[
        bool, typer.Option("--allow-promoted", help="Also if another folder may be the primary.")
    ] = False,
    allow_redacted: Annotated[
        bool, typer.Option("--allow-redacted", help="Also if redacted values come back.")
    ] = False,
    yes: Yes = False,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Rebuild lost or damaged metadata; status 1 if something stays damaged."""
    if allow_loss:
        ask(f"Leave behind the commits of {url} that can't be read?", yes=yes)
    done = segstore.repair(
        url,
        allow_loss=allow_loss,
        allow_promoted=allow_promoted,
        allow_redacted=allow_redacted,
        storage_options=settings.storage_options(storage_options),
    )
    lines = [*(f"rebuilt: {text}" for text in done.repaired)]
    lines += [f"left behind: version {version}" for version in done.lost]
    lines += [f"DAMAGED {text}" for text in done.damaged]
    lines += [f"version {done.version}, generation {done.generation}"]
    report(done, *lines, as_json=as_json)
    if done.damaged:
        raise typer.Exit(DAMAGED)


def salvage(
    url: Url,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Where the new stream goes.")],
    *,
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="Leave out what can't be read.")
    ] = False,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Copy what can be read of a damaged stream into a new one; status 1 if events were lost."""
    options = settings.storage_options(storage_options)
    done = segstore.salvage(url, target, skip_damaged=skip_damaged, storage_options=options)
    lines = [f"[{run.start}, {run.end}) is now at {run.now}" for run in done.moved]
    lines += [f"LOST [{run.start}, {run.end}): {run.where}: {run.what}" for run in done.lost]
    report(done, *lines, f"wrote {done.url}", as_json=as_json)
    if done.lost:
        raise typer.Exit(DAMAGED)


VERBS = (compact, retain, purge, vacuum, maintain, verify, repair, salvage)
