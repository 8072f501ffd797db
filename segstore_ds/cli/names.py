"""Commands for tags, readers, pins, followers, copies, backups and published tables."""

import hashlib
from dataclasses import asdict
from typing import Annotated

import typer

from segstore_ds.cli.arguments import Cut, DryRun, End, Run, Start, Url, Yes
from segstore_ds.cli.show import ask, say, shown, to_json
from segstore_ds.options.quantities import with_unit
from segstore_ds.options.table import TableFormat
from segstore_ds.storage import resolve_location

_READER = ("name", "owner", "offset", "behind", "lost", "renewed", "live", "released", "damaged")
_PIN = ("name", "version", "url", "clone_id", "made")
_MEMBER = ("reader", "member", "start", "end", "behind", "lease_s")


def tag(
    run: Run,
    url: Url,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Leave it out to list all tags.")
    ] = None,
    cut: Cut = "tail",
    *,
    move: Annotated[bool, "Move a tag of that name here."] = False,
    keep: Annotated[bool, "Keep the newest version, for `--as-of tag:NAME`."] = False,
    delete: Annotated[bool, "Remove the tag."] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Name a cut, which retain then respects; list or remove such names."""
    if name is None:
        if move or keep or delete:
            raise typer.BadParameter("--move, --keep and --delete need a NAME")
        run.table(run.read(url).metadata("tags"))
        return
    stream = run.change(url)
    if dry_run:
        offset = stream.position(f"tag:{name}" if delete else cut).offset
        text = f"would {'remove the tag' if delete else 'put'} {name} at {offset}"
        run.report({"dry_run": True, "name": name, "offset": offset}, text)
    elif delete:
        ask(f"Remove the tag {name} of {stream.url}?", yes=yes or name not in stream.tags)
        stream.tags.delete(name)
        run.report({"name": name, "removed": True}, f"removed {name}")
    else:
        made = stream.tags.set(name, cut, move=move, keep=keep)
        done = {"name": name, "offset": made.offset, "version": made.version}
        run.report(done, f"{name} is at {made.offset}")


def readers(
    run: Run,
    url: Url,
    *,
    release: Annotated[
        str | None, "NAME: Release this one: it holds back no events any more."
    ] = None,
    reset: Annotated[
        tuple[str, str] | None,
        typer.Option("--reset", metavar="NAME CUT", help="Let this one go on at a cut."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """List the named readers and how far each is behind; release or move one."""
    if release is not None and reset is not None:
        raise typer.BadParameter("give --release or --reset")
    if reset is not None:
        _reset(run, url, *reset, dry_run=dry_run, yes=yes)
        return
    if release is None:
        rows = run.read(url).metadata("readers").read_all().to_pylist()
        for row in rows:
            row["damaged"] = row["damaged"] and run.spell(row["damaged"])
        run.table([rows], _READER)
        members = [{"reader": row["name"], **each} for row in rows for each in row["members"] or ()]
        if not run.as_json:  # where a reader's line has them
            run.table([members], _MEMBER)
        return
    stream = run.change(url)
    if dry_run:
        offset = stream.position(f"reader:{release}").offset
        text = f"would release the reader {release} at {offset}"
        run.report({"dry_run": True, "name": release, "offset": offset}, text)
        return
    ask(f"Release the reader {release} of {stream.url}?", yes=yes)
    done = stream.readers.release(release)
    text = f"released {release}" if done else f"there is no reader {release} to release"
    run.report({"name": release, "released": done}, text)


def _reset(run: Run, url: str, name: str, cut: str, *, dry_run: bool, yes: bool) -> None:
    stream = run.change(url)
    before, offset = stream.position(f"reader:{name}").offset, stream.position(cut).offset
    moves = f"the reader {name} of {stream.url} from {before} to {offset}"
    done = {"name": name, "before": before, "offset": offset}
    if dry_run:
        run.report({"dry_run": True, **done}, f"would move {moves}")
        return
    ends = "What reads by this name ends with its next batch and has to be started again"
    ask(f"Move {moves}? {ends}; a streaming query also needs a new checkpoint.", yes=yes)
    stream.readers.reset(name, offset)
    run.report(done, f"moved {moves}")


def pins(
    run: Run,
    url: Url,
    *,
    release: Annotated[
        str | None, "NAME: Release this one, of a clone that is gone; others lose what they read."
    ] = None,
    yes: Yes = False,
) -> None:
    """List the versions that clones of the stream need; or release one."""
    if release is None:
        found = run.read(url).pins
        rows = ({"name": name, **to_json(pin)} for name, pin in found.items())
        run.table([[{key: row[key] for key in _PIN} for row in rows]])
        return
    stream = run.change(url)
    known = release in stream.pins
    ask(f"Release the pin {release} of {stream.url}? Its clone needs it.", yes=yes or not known)
    stream.pins.release(release)
    run.report({"name": release, "released": True}, f"released {release}")


def followers(
    run: Run,
    url: Url,
    *,
    add: Annotated[str | None, "FOLDER: Keep a second copy in this folder."] = None,
    remove: Annotated[str | None, "FOLDER: Continue without this one; it stays."] = None,
    promote: Annotated[bool, "Make URL, a follower, the primary."] = False,
    allow_promoted: Annotated[bool, "Remove it even if it may be the primary now."] = False,
    yes: Yes = False,
) -> None:
    """List the followers and what each lacks; or change them."""
    if (add is not None) + (remove is not None) + promote > 1:
        raise typer.BadParameter("give one of --add, --remove and --promote")
    stream = run.change(url) if add or remove or promote else run.read(url)
    if add:
        stream.followers.add(add)
        run.report({"followers": stream.followers}, f"added {add}")
    elif remove:
        ask(f"Continue {stream.url} without {remove}?", yes=yes)
        before = stream.followers
        stream.followers.remove(remove, allow_promoted=allow_promoted)
        done = len(stream.followers) < len(before)
        text = f"removed {remove}; its folder stays" if done else f"{remove} is no follower"
        run.report({"followers": stream.followers, "removed": done}, text)
    elif promote:
        ask(f"Make {stream.url} the primary? The old one can commit nothing any more.", yes=yes)
        generation = stream.followers.promote()
        run.report(
            {"generation": generation}, f"the stream is the primary, in generation {generation}"
        )
    else:
        found = stream.metrics().followers
        run.table([[asdict(each) for each in found]])
        if not run.as_json:
            down = (each.url for each in found if each.version is None)
            say(*(f"DOWN {place}: unreachable or promoted, so no commit passes" for place in down))


def copy(
    run: Run,
    url: Url,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A location without a stream.")],
    *,
    clone: Annotated[bool, "Share the segments; nothing is copied."] = False,
    events: Annotated[bool, "Write the events again, with offsets from 0."] = False,
    start: Start = "head",
    end: End = "tail",
    version: Annotated[int | None, "N: Clone this kept version."] = None,
    allow_redacted: Annotated[bool, "Clone it even if it has redacted values."] = False,
    seal: Annotated[bool, "Seal the copy."] = False,
    copy_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            help="The same id again is the same copy; made from the target's URL if left out.",
        ),
    ] = None,
) -> None:
    """Copy a stream or a range of it; again continues where it stopped."""
    if clone and events:
        raise typer.BadParameter("give --clone or --events, not both")
    place = resolve_location(target).url  # a relative path means another folder elsewhere
    made_of = hashlib.blake2b(place.encode(), digest_size=8).hexdigest()
    stream = run.change(url) if clone else run.read(url)
    with shown("copying") as progress:
        copied = stream.copy_to(
            target,
            copy_id=copy_id or f"to-{made_of}",
            mode="clone" if clone else "events" if events else "segments",
            start=start,
            end=end,
            version=version,
            allow_redacted=allow_redacted,
            seal=seal,
            storage_options=None if clone else run.options(),
            progress=progress,
        )
    again = ", copied before" if copied.repeated else ""
    held = f"events [{copied.start}, {copied.end}) in {copied.segments} segments"
    run.report(copied, f"{target} holds the {held}{again}")


def materialize(run: Run, url: Url) -> None:
    """Give a clone files of its own, so that its origin can be moved or dropped."""
    copied = run.change(url).materialize()
    run.report({"copied": copied}, f"copied {copied:,} objects; {url} shares none any more")


def backup(
    run: Run,
    url: Url,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A folder for this backup.")],
) -> None:
    """Back a stream up, bring a backup up to date, or restore it into an empty folder."""
    stream = run.read(url)
    with shown("copying", "objects") as progress:
        done = stream.back_up(target, storage_options=run.options(), progress=progress)
    new = f"{done.objects:,} objects, {with_unit(done.bytes)}, and {done.commits:,} commits are new"
    run.report(done, f"{target} holds version {done.version}, tail {done.tail:,}: {new}")


def publish(
    run: Run,
    url: Url,
    *,
    settle: Annotated[bool, "First write what is in no Parquet file yet."] = False,
    strict: Annotated[bool, "Refuse columns that the format lacks."] = False,
    kind: Annotated[
        TableFormat, typer.Option("--format", metavar="FORMAT", help="delta or iceberg.")
    ] = "delta",
    latest_by: Annotated[
        str | None, "COLUMNS: Only the newest event of each key, beside the stream."
    ] = None,
    tombstone: Annotated[str | None, "COLUMN: True in events that delete their key."] = None,
    auto: Annotated[
        bool | None,
        typer.Option("--auto/--no-auto", help="From now on, publish after commits too."),
    ] = None,
    remove: Annotated[bool, "Remove the table."] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Publish the stream as a Delta or Iceberg table, or update that."""
    stream = run.change(url)
    if dry_run:
        tables = stream.published.latest if latest_by else stream.published
        shows = tables.get(kind)
        text = f"{shows.url} lacks {shows.lag:,} events" if shows else "there is no table"
        why = f": {shows.reason}" if shows and shows.lag else ""
        run.report(shows or {"url": None}, text + why)
    elif remove:
        what = "tables of newest events" if latest_by else f"{kind} table"
        ask(f"Remove the {what} of {stream.url}?", yes=yes)
        tables = stream.published
        count = tables.remove_latest() if latest_by else tables.remove(kind)
        run.report({"deleted": count}, f"deleted {count} objects")
    else:
        done = stream.publish(
            kind,
            latest_by=latest_by.split(",") if latest_by else None,
            tombstone=tombstone,
            settle=settle,
            strict=strict,
            auto=auto,
        )
        text = f"{done.url} shows offsets [{done.head}, {done.tail})"
        text += f"; {done.reason}" if done.lag else ""
        text += f"; left out: {', '.join(done.left_out)}" if done.left_out else ""
        run.report(done, text)


VERBS = (tag, readers, followers, pins, copy, materialize, backup, publish)
