"""Commands that change what a stream holds or names: truncate to drop, copies and followers."""

import hashlib
from collections.abc import Callable
from typing import Annotated

import typer

import segstore_ds as segstore
from segstore_ds.cli import settings
from segstore_ds.cli.arguments import (
    Cut,
    DryRun,
    End,
    Json,
    Options,
    Start,
    Url,
    Where,
    Yes,
    parse_conditions,
)
from segstore_ds.cli.progress import shown
from segstore_ds.cli.show import Table, ask, report
from segstore_ds.options.table_formats import TableFormat

Name = Annotated[str, typer.Argument(metavar="NAME")]
Target = Annotated[str, typer.Argument(metavar="TARGET", help="A location without a stream.")]
CopyId = Annotated[
    str | None,
    typer.Option(
        "--id",
        help="The same id again is the same copy; one made of the target's URL if none is given.",
    ),
]


def truncate(
    url: Url,
    cut: Cut,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Forget the events before a cut."""
    stream = settings.open_to_change(url, storage_options)
    before, offset = stream.head, stream.position(cut).offset
    lost = f"the {max(offset - before, 0):,} events [{before}, {offset}) of {stream.url}"
    if dry_run:
        done = {"dry_run": True, "head": before, "dropped": max(offset - before, 0)}
        report(done, f"would forget {lost}", as_json=as_json)
        return
    ask(f"Forget {lost}?", yes=yes)
    now = stream.truncate(offset)
    report({"head": now, "dropped": now - before}, f"the head is {now}", as_json=as_json)


def seal(
    url: Url, *, yes: Yes = False, storage_options: Options = None, as_json: Json = False
) -> None:
    """End a stream: nothing can be appended any more."""
    stream = settings.open_to_change(url, storage_options)
    ask(f"End {stream.url} for good?", yes=yes)
    end = stream.seal()
    report({"tail": end, "sealed": True}, f"sealed at {end}", as_json=as_json)


def restore(
    url: Url,
    version: Annotated[int, typer.Argument(metavar="VERSION", help="A version that is kept.")],
    *,
    yes: Yes = False,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Bring back the events of an earlier version, at new offsets."""
    stream = settings.open_to_change(url, storage_options)
    ask(f"Replace the events of {stream.url} by those of version {version}?", yes=yes)
    commit = stream.restore(version)
    text = f"offsets [{commit.start}, {commit.end}) in version {commit.version}"
    report(commit, text, as_json=as_json)


def tag(
    url: Url,
    name: Name,
    cut: Cut = "tail",
    *,
    move: Annotated[bool, typer.Option("--move", help="Move a tag of that name here.")] = False,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Give a cut a name, which retain respects."""
    stream = settings.open_to_change(url, storage_options)
    made = stream.tag(name, cut, move=move)
    done = {"name": name, "offset": made.offset, "version": made.version}
    report(done, f"{name} is at {made.offset}", as_json=as_json)


def untag(
    url: Url,
    name: Name,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Remove a tag."""
    stream = settings.open_to_change(url, storage_options)
    if dry_run:
        place = stream.position(f"tag:{name}").offset
        report(
            {"dry_run": True, "name": name, "offset": place},
            f"would remove the tag {name} at {place}",
            as_json=as_json,
        )
        return
    ask(f"Remove the tag {name} of {stream.url}?", yes=yes)
    stream.untag(name)
    report({"name": name, "removed": True}, f"removed {name}", as_json=as_json)


def release(
    url: Url,
    name: Name,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Release a named reader: it holds back no events any more."""
    stream = settings.open_to_change(url, storage_options)
    if dry_run:
        place = stream.position(f"reader:{name}").offset
        report(
            {"dry_run": True, "name": name, "offset": place},
            f"would release the reader {name} at {place}",
            as_json=as_json,
        )
        return
    ask(f"Release the reader {name} of {stream.url}?", yes=yes)
    done = stream.release_reader(name)
    text = f"released {name}" if done else f"there is no reader {name} to release"
    report({"name": name, "released": done}, text, as_json=as_json)


def redact(
    url: Url,
    *,
    where: Where,
    columns: Annotated[str, typer.Option("--columns", "-c", metavar="A,B", help="Which to clear.")],
    reason: Annotated[str, typer.Option(help="Kept with the record; never a person.")] = "",
    redact_id: Annotated[str | None, typer.Option("--id", help="The same id goes on.")] = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="Delete what still holds the values.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Set columns of matching events to null, in all that is stored."""
    stream = settings.open_to_change(url, storage_options)
    filters, names = parse_conditions(where), columns.split(",")
    if dry_run:
        kept = stream.read(filters=filters, columns=names)
        found = sum(batch.num_rows for batch in kept)
        text = f"{found:,} kept events match"
        report({"dry_run": True, "rows": found}, text, as_json=as_json)
        return
    ask(f"Set {', '.join(names)} of matching events of {stream.url} to null for good?", yes=yes)
    done = stream.redact(filters, columns=names, reason=reason, redact_id=redact_id, forget=forget)
    text = (
        f"{done.rows:,} events of {done.segments} segments below {done.tail}, id {done.redact_id}"
    )
    forgotten = () if done.forgotten is None else str(done.forgotten).split("\n")
    report(done, text, *forgotten, as_json=as_json)


def drop(
    url: Url,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Delete a stream."""
    options = settings.storage_options(storage_options)
    if dry_run or not yes:
        stream = settings.open_to_read(url, storage_options)
        held = stream.metadata("storage").read_all().to_pylist()
        objects, size = (sum(row[name] for row in held) for name in ("objects", "bytes"))
        what = f"{stream.url}: {stream.tail - stream.head:,} events, {objects} objects, {size:,} B"
        if dry_run:
            done = {"dry_run": True, "url": stream.url, "objects": objects, "bytes": size}
            report(done, f"would delete {what}", as_json=as_json)
            return
        ask(f"Delete {what}?", yes=yes)
    dropped = segstore.drop(url, confirm=url, storage_options=options)
    kept = (f"not the stream's, kept: {name}" for name in dropped.kept)
    report(dropped, f"deleted {dropped.deleted} objects", *kept, as_json=as_json)


def copy(
    url: Url,
    target: Target,
    *,
    copy_id: CopyId = None,
    mode: Annotated[str, typer.Option(help="segments: the objects; events: anew.")] = "segments",
    start: Start = "head",
    end: End = "tail",
    seal: Annotated[bool, typer.Option("--seal", help="Seal the copy.")] = False,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Copy a stream or a range of it, on any filesystem; again continues where it stopped."""
    stream = settings.open_to_read(url, storage_options)
    with shown("copying") as progress:
        copied = stream.copy_to(
            target,
            copy_id=copy_id or _id_of(target),
            mode=mode,
            start=start,
            end=end,
            seal=seal,
            storage_options=settings.storage_options(storage_options),
            progress=progress,
        )
    report(copied, _said(copied, target), as_json=as_json)


def clone(
    url: Url,
    target: Target,
    *,
    copy_id: CopyId = None,
    end: End = "tail",
    version: Annotated[int | None, typer.Option(metavar="N", help="Of this kept version.")] = None,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Make a stream that shares this one's segments, in three commits for any length."""
    stream = settings.open_to_change(url, storage_options)
    copied = stream.copy_to(
        target, copy_id=copy_id or _id_of(target), mode="clone", end=end, version=version
    )
    report(copied, _said(copied, target), as_json=as_json)


def _id_of(target: str) -> str:
    return f"to-{hashlib.blake2b(target.encode(), digest_size=8).hexdigest()}"


def _said(copied: "segstore.Copied", target: str) -> str:
    again = ", as it was before" if copied.repeated else ""
    events = f"events [{copied.start}, {copied.end})"
    return f"{target} holds the {events} in {copied.segments} segments{again}"


def publish(
    url: Url,
    *,
    settle: Annotated[
        bool, typer.Option("--settle", help="First merge what is in no Parquet file.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse columns that the format lacks.")
    ] = False,
    kind: Annotated[
        TableFormat, typer.Option("--format", metavar="FORMAT", help="delta or iceberg.")
    ] = "delta",
    auto: Annotated[
        bool | None, typer.Option("--auto/--no-auto", help="From now on, also after commits.")
    ] = None,
    catalog: Annotated[
        str | None, typer.Option(help="Then tell this catalog of pyiceberg's configuration.")
    ] = None,
    table: Annotated[
        str | None, typer.Option(metavar="NAME", help="namespace.name in that catalog.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the table.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Publish the stream as a Delta or Iceberg table over its own files, or update that."""
    stream = settings.open_to_change(url, storage_options)
    if dry_run:
        shows = stream.published(kind)
        text = f"{shows.url} lacks {shows.lag:,} events" if shows else "there is no table"
        why = f": {shows.reason}" if shows and shows.lag else ""
        report(shows or {"url": None}, text + why, as_json=as_json)
    elif remove:
        ask(f"Remove the {kind} table of {stream.url}?", yes=yes)
        count = stream.unpublish(kind)
        report({"deleted": count}, f"deleted {count} objects", as_json=as_json)
    else:
        done = stream.publish(
            kind, settle=settle, strict=strict, auto=auto, catalog=catalog, table=table
        )
        text = f"{done.url} shows offsets [{done.head}, {done.tail})"
        why = f"; {done.reason}" if done.lag else ""
        out = f"; left out: {', '.join(done.left_out)}" if done.left_out else ""
        told = f"; {table} points to {done.registered}" if done.registered else ""
        missed = "; THE CATALOG WAS NOT TOLD: see the log" if catalog and not told else ""
        report(done, text + why + out + told + missed, as_json=as_json)


def list_followers(url: Url, *, storage_options: Options = None, as_json: Json = False) -> None:
    """List the folders that hold a second copy of a stream."""
    stream = settings.open_to_read(url, storage_options)
    Table(as_json=as_json).rows([{"url": found} for found in stream.followers])


def add_follower(
    url: Url, follower: Target, *, storage_options: Options = None, as_json: Json = False
) -> None:
    """Keep a second copy of the whole stream in another folder."""
    stream = settings.open_to_change(url, storage_options)
    stream.add_follower(follower)
    report({"followers": stream.followers}, f"{follower} follows", as_json=as_json)


def remove_follower(
    url: Url,
    follower: Annotated[str, typer.Argument(metavar="FOLLOWER")],
    *,
    yes: Yes = False,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Continue without a follower; its folder stays."""
    stream = settings.open_to_change(url, storage_options)
    ask(f"Continue {stream.url} without {follower}?", yes=yes)
    stream.remove_follower(follower)
    report({"followers": stream.followers}, f"{follower} follows no more", as_json=as_json)


def promote_follower(
    url: Url, *, yes: Yes = False, storage_options: Options = None, as_json: Json = False
) -> None:
    """Make this follower the primary, when the old one is lost or given up."""
    stream = settings.open_to_change(url, storage_options)
    ask(f"Make {stream.url} the primary? The old one can commit nothing any more.", yes=yes)
    generation = stream.promote()
    text = f"primary, in generation {generation}"
    report({"generation": generation}, text, as_json=as_json)


VERBS = (truncate, seal, restore, tag, untag, release, redact, drop, copy, clone, publish)
# Commands of two words: the first one, its help, and the second ones.
NOUNS: dict[str, tuple[str, dict[str, Callable[..., None]]]] = {
    "follower": (
        "Second copies of a stream.",
        {
            "list": list_followers,
            "add": add_follower,
            "remove": remove_follower,
            "promote": promote_follower,
        },
    )
}
