"""Forgets what a redaction replaced: old versions, old objects, and what killed jobs left of them.

It calls `retention.deletion` to forget the versions from before the redaction, and no later ones.
Objects that may not be deleted yet stay. The report names them, in the stream's folder and in each
mirror, with what they wait for and the call that deletes them. The same call later continues.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from segstore_ds.errors import StorageError
from segstore_ds.format import names
from segstore_ds.format.copies import origins_of, parse_copy, pins_of
from segstore_ds.format.policies import DEFAULT_POLICY, upkeep_of
from segstore_ds.format.redactions import Redaction, redactions_of
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.options.quantities import to_moment
from segstore_ds.read.segments import PROCESS_CACHE
from segstore_ds.redact.plan import AGAIN, BEYOND, Forgotten, Left, Redacted, RedactRequest
from segstore_ds.redact.run import run_redact
from segstore_ds.retention.deletion import run_maintain
from segstore_ds.retention.report import Maintenance
from segstore_ds.status.deletable import Item
from segstore_ds.storage import Storage

# Removes a redaction's values from published tables. Yields what is left, what it waits for, the
# call that deletes it if another is needed, and when (us) that is possible.
Tables = Callable[[StreamContext, Redaction, float], Iterable[tuple[str, str, str, int]]]


def redact_and_forget(
    context: StreamContext,
    request: RedactRequest,
    *,
    forget: bool,
    short_grace: bool,
    tables: Tables,
) -> Redacted:
    """Redact; with `forget`, also delete what held the values."""
    done = run_redact(context, request)
    if not forget:
        return done
    forgotten = run_forget(context, request.redact_id, tables, short_grace=short_grace)
    return replace(done, forgotten=forgotten)


def run_forget(
    context: StreamContext, redact_id: str, tables: Tables, *, short_grace: bool = False
) -> Forgotten:
    """Delete what may still hold the values of a finished redaction, as far as possible now.

    The grace is that of the stream's upkeep. With `short_grace` objects are deleted as soon as no
    version lists them, which breaks readers of older versions and running jobs. Safe to repeat.
    """
    root = context.log.refresh()
    record = redactions_of(root)[redact_id]
    policy = upkeep_of(root) or DEFAULT_POLICY
    return forget_before(context, record, tables, 0 if short_grace else policy.grace_s)


def forget_before(
    context: StreamContext, record: Redaction, tables: Tables, grace_s: float
) -> Forgotten:
    """Delete what is from before the version of a record, as far as possible now."""
    PROCESS_CACHE.reset()
    published = list(tables(context, record, grace_s))  # first, so that their readers switch
    report = run_maintain(
        context, keep_s=0, keep_from=record.version, grace_s=grace_s, short_grace=True
    )
    root, now_us = context.log.root, context.storage.info(context.log.files.hint_path).modified_us
    left = list(_waiting(context.storage.url, report.kept, record.version))
    left += _versions(context.storage.url, context.log.files.numbers(), record.version)
    left += _copies(context, report, record.version)
    due_us = record.time_us + int(max(grace_s, context.log.grace_s) * 1e6) if left else 0
    due_us = max([due_us, *(table_us for *_, table_us in published)])
    left += [
        Left(context.storage.url, what, why, call or AGAIN) for what, why, call, _ in published
    ]
    left += _elsewhere(root, record.version)
    left += _aside(context.storage)
    due = to_moment(max(due_us, now_us)) if due_us else None
    return Forgotten(not left, due, tuple(left), (*BEYOND, *_sources(root)))


def _waiting(url: str, kept: Iterable[Item], version: int) -> Iterator[Left]:
    """Yield the objects that may be from before a version, grouped by what they wait for."""
    older = (item for item in kept if _may_be_older(item, version))
    counts = Counter((item.why, item.waits_for) for item in older)
    for (why, waits_for), count in sorted(counts.items()):
        yield Left(url, f"objects ({why}): {count}", waits_for, AGAIN)


def _may_be_older(item: Item, version: int) -> bool:
    if item.dropped is not None:
        return item.dropped <= version
    staged = names.staged_version(item.path)
    return names.is_object(item.path) and (staged is None or staged < version)


def _versions(url: str, numbers: Iterable[int], version: int) -> Iterator[Left]:
    count = sum(number < version for number in numbers)
    if count:
        yield Left(
            url,
            f"commit files from before version {version}: {count}",
            "kept for an hour after the redaction, for open handles",
            AGAIN,
        )


def _copies(context: StreamContext, report: Maintenance, version: int) -> Iterator[Left]:
    mirrors = context.log.seams.of(context.log.root).mirrors(context.log.root)
    for files in context.log.seams.copies(context.log.root):
        url = files.storage.url
        kept, numbers = report.mirrors.get(url), None
        with suppress(StorageError):
            numbers = files.numbers()
        if kept is not None and numbers is not None:
            yield from _waiting(url, kept, version)
            yield from _versions(url, numbers, version)
        elif mirrors is not None:
            yield Left(
                url,
                "the mirror",
                "it can't be reached",
                f"{AGAIN}; or {mirrors.leaving(url)} and delete the folder",
            )


def _elsewhere(root: Root, version: int) -> Iterator[Left]:
    """Yield the other streams that share objects from before a version with this one."""
    for name, pin in pins_of(root).items():
        if pin.version < version:
            yield Left(
                pin.url,
                "a clone of a version from before the redaction",
                "it lists the old objects, and its pin keeps them here",
                "redact the clone and call materialize() on it, or drop it; if it was deleted, "
                f"call pins.release({name!r})",
            )
    for origin in origins_of(root):
        yield Left(
            origin.url,
            "the origin of this clone",
            "it has the shared objects that were replaced here",
            "redact the origin with forget=True, or materialize() this clone and drop the origin",
        )


def _aside(storage: Storage) -> Iterator[Left]:
    """Yield the files that a repair moved out of the log, since they may hold events."""
    for info in storage.list(names.ASIDE_FOLDER):
        yield Left(storage.url, info.path, "a repair moved it there", "check and delete it")


def _sources(root: Root) -> Iterator[str]:
    """Yield the streams that this one was copied from, which still have the events."""
    for name, value in root.copies.items():
        copy = parse_copy(name, value)
        place = copy.origin or f"the stream with the id {copy.source}"
        yield f"{place}, the source of copy {name!r}: redact it there too"
