"""Commands that change which events a stream holds: truncate, retain, seal, restore and others."""

import json
from collections.abc import Collection
from dataclasses import fields
from typing import Annotated, Any

import typer

import segstore_ds as segstore
from segstore_ds.cli.arguments import Cut, DryRun, Run, Url, Where, Yes, only_filter
from segstore_ds.cli.show import ask, expiry_text, to_json
from segstore_ds.errors import FormatError, NotFoundError
from segstore_ds.options.arguments import check_duration
from segstore_ds.options.quantities import duration_text, printable_json, size_text


def truncate(run: Run, url: Url, cut: Cut, *, dry_run: DryRun = False, yes: Yes = False) -> None:
    """Forget the events before a cut."""
    stream = run.change(url)
    before, offset = stream.head, stream.position(cut).offset
    if offset > stream.tail:
        raise typer.BadParameter(f"the cut {offset} is beyond the tail {stream.tail}")
    count = max(offset - before, 0)
    lost = f"the {count:,} events [{before}, {offset}) of {stream.url}"
    if dry_run:
        run.report({"dry_run": True, "head": before, "dropped": count}, f"would forget {lost}")
        return
    ask(f"Forget {lost}?", yes=yes or not count)
    now = stream.truncate(offset)
    run.report({"head": now, "dropped": now - before}, f"the head is {now}")


def retain(
    run: Run,
    url: Url,
    *,
    max_bytes: Annotated[
        str | None, "Drop the oldest segments while the rest is larger, such as 10g."
    ] = None,
    max_age: Annotated[
        str | None, "Drop events that were committed longer ago, such as 7d."
    ] = None,
    max_event_age: Annotated[
        str | None, "Drop what lies before the first event whose own time is within this age."
    ] = None,
    min_bytes: Annotated[str | None, "Keep at least this much, such as 1g."] = None,
    min_age: Annotated[str | None, "Keep events that were committed within this age."] = None,
    ignore_readers: Annotated[bool, "Drop also what tags and live readers need."] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Drop the oldest events; without a maximum those that every live reader is done with."""
    stream = run.change(url)
    policy = {"max_bytes": max_bytes, "max_age": max_age, "respect_readers": not ignore_readers}
    policy |= {"min_bytes": min_bytes, "min_age": min_age, "max_event_age": max_event_age}
    planned = stream.retain(policy, dry_run=True)
    if dry_run:
        run.report(planned, *f"would have {planned}".split("\n"))
        return
    if planned.dropped:
        ask(f"Drop {planned.dropped:,} events of {stream.url}?", yes=yes)
    run.report(stream.retain(policy))


def seal(run: Run, url: Url, *, yes: Yes = False) -> None:
    """End a stream: nothing can be appended any more."""
    stream = run.change(url)
    ask(f"End {stream.url} for good?", yes=yes)
    end = stream.seal()
    run.report({"tail": end, "sealed": True}, f"sealed at offset {end}")


def restore(
    run: Run,
    url: Url,
    version: Annotated[int, typer.Argument(metavar="VERSION", help="A version that is kept.")],
    *,
    allow_redacted: Annotated[bool, "Go on even if redacted values come back."] = False,
    yes: Yes = False,
) -> None:
    """Bring back the events of an earlier version, at new offsets."""
    stream = run.change(url)
    ask(f"Replace the events of {stream.url} by those of version {version}?", yes=yes)
    commit = stream.restore(version, allow_redacted=allow_redacted)
    run.report(commit, f"offsets [{commit.start}, {commit.end}) in version {commit.version}")


def redact(
    run: Run,
    url: Url,
    *,
    columns: Annotated[str, typer.Option("--columns", "-c", metavar="A,B", help="Which to clear.")],
    where: Where = None,
    after: Annotated[
        str | None, "AGE: From now on, whenever events get that old, such as 30d; or never."
    ] = None,
    reason: Annotated[str, "Kept with the record: a request's number, never a person."] = "",
    redact_id: Annotated[str | None, typer.Option("--id", help="The same id continues.")] = None,
    forget: Annotated[bool, "Delete what still holds the values."] = False,
    short_grace: Annotated[bool, "With --forget: at once, whoever still reads it."] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Set columns of matching events to null, once or as they get old."""
    stream = run.change(url)
    filters, names = only_filter(where), columns.split(",")
    if redact_id is None and after != "never":  # a repeated id may only return what was done
        from segstore_ds.format.redactions import refuse_kept

        refuse_kept(stream._context.log.root)  # noqa: SLF001 - before the user is asked to confirm
    if after is not None:
        if forget or reason or redact_id is not None:
            raise typer.BadParameter("--after takes no --forget, --reason and --id")
        _expire(run, stream, names, after, filters, dry_run=dry_run, yes=yes)
        return
    if short_grace and not forget:
        raise typer.BadParameter("--short-grace needs --forget")
    if filters is None:
        raise typer.BadParameter("give --where, or --after for all events of an age")
    if dry_run:
        found = sum(batch.num_rows for batch in stream.read(filters=filters, columns=names))
        run.report({"dry_run": True, "rows": found}, f"{found:,} kept events match")
        return
    ask(f"Set {', '.join(names)} of matching events of {stream.url} to null for good?", yes=yes)
    done = stream.redact(
        filters,
        columns=names,
        reason=reason,
        redact_id=redact_id,
        forget=forget,
        short_grace=short_grace,
    )
    held = f"{done.rows:,} events in {done.segments:,} segments"
    text = f"redacted {held}, below offset {done.tail}"
    forgotten = () if done.forgotten is None else run.spell(str(done.forgotten)).split("\n")
    run.report(done, f"{text}, id {done.redact_id}", *forgotten)


def _expire(
    run: Run,
    stream: Any,
    names: list[str],
    after: str,
    filters: str | None,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    kept: dict[str, Any] = {
        rule.column: {"age": rule.age_s, "filters": rule.filters}
        for rule in stream.settings.expiry
        if rule.column not in names
    }
    given = names if after != "never" and check_duration("after", after) is not None else []
    rules = {name: {"age": after, "filters": filters} for name in given}
    text = f"{', '.join(names)} of {stream.url}"
    text = f"{text} expire no more" if not rules else f"{text} become null after {after}"
    if not dry_run:
        ask(f"Let values expire: {text}?", yes=yes or not rules)
        stream.settings.update(expiry={**kept, **rules})
    done = {"dry_run": dry_run, "columns": names, "after": after}
    run.report(done, f"would be set: {text}" if dry_run else text)


def drop(run: Run, url: Url, *, dry_run: DryRun = False, yes: Yes = False) -> None:
    """Delete a stream."""
    if dry_run or not yes:
        try:
            stream = run.read(url)
            held = stream.metadata("storage").read_all().to_pylist()
            held = [row for row in held if row["why"] != "commits"]  # which stay
            objects, size = (sum(row[name] for row in held) for name in ("objects", "bytes"))
            what = f"{stream.url} with its published tables: {stream.tail - stream.head:,} events, "
            what += f"{objects:,} objects of the stream, {size:,} B"
        except (FormatError, NotFoundError) as error:
            # A damaged stream, or the rest of an interrupted drop, is deleted without a count.
            nothing = isinstance(error, NotFoundError) and "version" not in error.fields
            if dry_run or nothing:
                raise
            what = f"{url}, whose content is unknown: {error.fact}"
        if dry_run:
            done = {"dry_run": True, "url": stream.url, "objects": objects, "bytes": size}
            run.report(done, f"would delete {what}")
            return
        ask(f"Delete {what}?", yes=yes)
    dropped = segstore.drop(url, confirm=url, **run.how())
    kept = (f"not the stream's, kept: {name}" for name in dropped.kept)
    text = f"objects deleted: {dropped.deleted:,}; the log stays, and says that it was dropped"
    run.report(dropped, text, *kept)


def columns(
    run: Run,
    url: Url,
    *,
    rename: Annotated[
        list[str] | None, typer.Option(metavar="OLD=NEW", help="Rename a column; repeatable.")
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option("--drop", metavar="NAME", help="Drop one; repeatable.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Rename and drop columns; no event is rewritten."""
    pairs = [text.partition("=") for text in rename or ()]
    if not all(equals for _, equals, _ in pairs):
        raise typer.BadParameter("give --rename OLD=NEW")
    stream, names = run.change(url), {old: new for old, _, new in pairs}
    if remove:
        known = {*remove} <= {*stream.schema.names}
        ask(f"Drop {', '.join(remove)} of {stream.url}?", yes=yes or not known)
    stream.change_schema(rename=names, drop=remove or ())
    known = stream.schema.names
    run.report({"columns": known}, f"columns: {', '.join(known)}")


def settings(
    run: Run,
    url: Url,
    *,
    key_columns: Annotated[str | None, "A,B: By which events are looked up; or none."] = None,
    time_column: Annotated[str | None, "NAME: The column with each event's time; or none."] = None,
    rules: Annotated[
        str | None, 'JSON: What appended events must satisfy, {"not_null": ["user"]}; or none.'
    ] = None,
    retention: Annotated[
        str | None, "RULES: Which events commits drop, such as max_age=7d,max_bytes=10g; or none."
    ] = None,
    upkeep: Annotated[
        str | None,
        "RULES: What upkeep keeps, such as keep=1d,keep_versions=100,grace=7d; or none, default.",
    ] = None,
    yes: Yes = False,
) -> None:
    """Show the rules of a stream for all of its writers, or change them."""
    from segstore_ds.stream.namespaces import SETTINGS

    given: dict[str, Any] = {}
    if key_columns is not None:
        given["key_columns"] = None if key_columns == "none" else key_columns.split(",")
    if time_column is not None:
        given["time_column"] = None if time_column == "none" else time_column
    if retention is not None:
        given["retention"] = None if retention == "none" else _retention(retention)
    if upkeep is not None:
        given["upkeep"] = None if upkeep == "none" else _upkeep(upkeep)
    if rules is not None:
        given["rules"] = None if rules == "none" else _json("--rules", rules)
    stream = run.change(url) if given else run.read(url)
    kept = [f"{name} {_shown(given[name])}" for name in ("retention", "upkeep") if given.get(name)]
    if kept:
        ask(f"Let commits of {stream.url} delete by {' and '.join(kept)}?", yes=yes)
    if given:
        stream.settings.update(**given)
    known = {name: getattr(stream.settings, name) for name in SETTINGS}
    run.report(known, *(f"{name:11} {_shown(value)}" for name, value in known.items()))


def _json(flag: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{flag} is not JSON: {error}") from None


def _shown(value: Any) -> str:
    """Return a setting as its flag takes it."""
    match value:
        case None | ():
            return "none"
        case segstore.RetentionPolicy() | segstore.UpkeepPolicy():
            known = {field.name: getattr(value, field.name) for field in fields(value)}
            rules = (_rule(*pair) for pair in known.items() if pair[1] is not None)
            return ",".join(rules)
        case segstore.reports.Rules():
            return printable_json({name: rule for name, rule in to_json(value).items() if rule})
        case segstore.reports.Expiry():
            return expiry_text(value)
        case tuple():
            return ", ".join(map(_shown, value))
    return str(value)


def _rule(name: str, value: int) -> str:
    if name == "respect_readers":
        return f"{name}={'true' if value else 'false'}"
    if name == "keep_versions":
        return f"{name}={value}"
    if name.endswith("_bytes"):
        return f"{name}={size_text(value)}"
    return f"{name.removesuffix('_s')}={duration_text(value)}"


def _rules(flag: str, text: str, names: Collection[str]) -> dict[str, str]:
    rules = [rule.partition("=") for rule in text.split(",")]
    if not all(equals and name in names for name, equals, _ in rules):
        raise typer.BadParameter(f"{flag} takes none, or NAME=VALUE of {', '.join(names)}")
    return {name: value for name, _, value in rules}


def _retention(text: str) -> "segstore.RetentionPolicy":
    names = [field.name for field in fields(segstore.RetentionPolicy)]
    found: dict[str, Any] = _rules("--retention", text, names)
    if "respect_readers" in found:
        said = found["respect_readers"].lower()
        found["respect_readers"] = {"true": True, "false": False}.get(said, said)
    return segstore.RetentionPolicy(**found)


def _upkeep(text: str) -> "segstore.UpkeepPolicy":
    from segstore_ds.format.policies import DAY_S

    names = ("keep", "keep_versions", "grace")
    found: dict[str, Any] = {} if text == "default" else _rules("--upkeep", text, names)
    for name in ("keep", "grace"):
        if name in found:
            found[f"{name}_s"] = check_duration(name, found.pop(name))
    if "keep_versions" in found:
        number = found["keep_versions"]
        found["keep_versions"] = int(number) if number.isdecimal() else 0
    if found.get("keep_versions") == 0 or found.get("grace_s", DAY_S) < DAY_S:
        raise typer.BadParameter("--upkeep: keep_versions is at least 1, and grace is at least 1d")
    return segstore.UpkeepPolicy(**found)


VERBS = (truncate, retain, seal, restore, redact, columns, settings, drop)
