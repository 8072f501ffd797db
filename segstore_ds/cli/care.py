"""Commands to maintain and rescue a stream: maintain, compact, verify, repair, salvage."""

from functools import partial
from typing import Annotated

import typer

import segstore_ds as segstore
from segstore_ds.cli import DAMAGED
from segstore_ds.cli.arguments import DryRun, End, Run, Url, Yes
from segstore_ds.cli.show import ask, shown
from segstore_ds.options.arguments import check_size
from segstore_ds.options.quantities import with_unit
from segstore_ds.options.table import TARGET_ROWS

_BREAKS = (
    "of versions forgotten now, reads, jobs, restore and copies fail; publish tables again, until "
    "then their readers may fail"
)


def maintain(
    run: Run,
    url: Url,
    *,
    keep: Annotated[str | None, "AGE: Forget versions superseded longer ago, such as 30d."] = None,
    min_versions: Annotated[
        int, typer.Option(min=1, help="With --keep: keep at least this many versions.")
    ] = 1,
    grace: Annotated[str | None, "AGE: Delete objects dropped longer ago, such as 7d."] = None,
    short_grace: Annotated[
        bool, "Allow a grace below a day, if no reader and no job needs more."
    ] = False,
    free_now: Annotated[
        bool, "For a full disk: ends reads and jobs that began over five minutes ago."
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Forget old versions and delete what nothing needs."""
    if (keep is None and min_versions > 1) or (grace is None and short_grace):
        raise typer.BadParameter("--min-versions needs --keep, and --short-grace needs --grace")
    stream = run.change(url)
    maintain = partial(
        stream.maintain,
        keep=keep,
        min_versions=min_versions,
        grace=grace,
        short_grace=short_grace,
        free_now=free_now,
    )
    breaks = (_BREAKS,) if free_now else ()
    if dry_run:
        found = maintain(dry_run=True)
        run.report(found, *str(found).split("\n"), *breaks)
        return
    if not yes:
        found = maintain(dry_run=True)
        gone = f"{len(found.deleted):,} objects, {with_unit(found.bytes)}"
        gone += f", and expire values of {found.expired:,} events" if found.expired else ""
        gone += ", which ends reads and jobs that began over five minutes ago" if free_now else ""
        if found.versions or found.deleted or found.expired:
            ask(f"Forget {found.versions:,} versions of {stream.url}, and delete {gone}?", yes=yes)
    with shown("deleting", "objects") as progress:
        done = maintain(progress=progress)
    run.report(done, *str(done).split("\n"), *breaks)


def compact(
    run: Run,
    url: Url,
    *,
    start: Annotated[str | None, "CUT: Where to begin."] = None,
    end: End = "tail",
    mode: Annotated[str, "merge, stitch or split."] = "merge",
    target_rows: Annotated[int, "N: Most events of a segment."] = TARGET_ROWS,
    target_bytes: Annotated[str, "SIZE: Most bytes of a segment."] = "128m",
) -> None:
    """Replace runs of small segments by a few large ones; events and offsets stay."""
    stream = run.change(url)
    with shown("compacting") as progress:
        done = stream.compact(
            start,
            end,
            mode=mode,
            target_rows=target_rows,
            target_bytes=check_size("target_bytes", target_bytes) or 0,
            progress=progress,
        )
    merged = f"compacted {done.segments_before:,} segments into {done.segments_after:,}"
    text = f"{merged}, in version {done.version}" if done.commits else "nothing to compact"
    run.report(done, text)


def verify(run: Run, url: Url) -> None:
    """Read a whole stream and report damage."""
    with shown("verifying", "events and versions") as progress:
        found = segstore.verify(url, storage_options=run.options(), progress=progress)
    read = f"{found.segments:,} segments, {found.frames:,} frames, {found.rows:,} events"
    lines = [f"verified {found.versions:,} versions, {read}"]
    for path in found.leftovers:
        unclaimed = path in found.unclaimed
        kind = "staged, or of a lost commit" if unclaimed else "leftover, no damage"
        lines.append(f"{kind}: {path}")
    for problem in found.problems:
        older = problem.version is not None
        need = f" (needed as of version {problem.version} and before)" if older else ""
        lines.append(f"DAMAGED {problem.where}: {run.spell(problem.what)}{need}")
    lines.append("no damage" if found.ok else f"damaged: {len(found.problems)} problems")
    run.report(found, *lines)
    if not found.ok:
        raise typer.Exit(DAMAGED)


def repair(
    run: Run,
    url: Url,
    *,
    allow_loss: Annotated[bool, "Give up the newest commits if they are lost."] = False,
    allow_promoted: Annotated[bool, "Go on even if another folder may be the primary."] = False,
    allow_redacted: Annotated[bool, "Go on even if redacted values may come back."] = False,
    replica: Annotated[str | None, "FOLDER: Take lost commits from this copy."] = None,
    yes: Yes = False,
) -> None:
    """Restore what is lost or damaged."""
    if allow_loss:
        ask(f"Give up the newest commits of {url} that can't be read?", yes=yes)
    done = segstore.repair(
        url,
        allow_loss=allow_loss,
        allow_promoted=allow_promoted,
        allow_redacted=allow_redacted,
        replica=replica,
        **run.how(),
    )
    lines = [*(f"put back: {text}" for text in done.repaired)]
    lines += [f"given up: version {version}" for version in done.lost]
    lines += [f"DAMAGED {run.spell(text)}" for text in done.damaged]
    run.report(
        done, *lines, f"the stream is at version {done.version}, generation {done.generation}"
    )
    if done.damaged:
        raise typer.Exit(DAMAGED)


def salvage(
    run: Run,
    url: Url,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Where the new stream goes.")],
    *,
    skip_damaged: Annotated[bool, "Leave out what can't be read."] = False,
) -> None:
    """Copy what can be read of a damaged stream into a new one."""
    done = segstore.salvage(url, target, skip_damaged=skip_damaged, storage_options=run.options())
    lines = [f"[{row.start}, {row.end}) is now at {row.now}" for row in done.moved]
    lost = ((f"[{row.start}, {row.end})", row) for row in done.lost)
    lines += [f"LOST {events}: {row.where}: {run.spell(row.what)}" for events, row in lost]
    run.report(done, *lines, f"wrote {done.url}")
    if done.lost:
        raise typer.Exit(DAMAGED)


VERBS = (maintain, compact, verify, repair, salvage)
