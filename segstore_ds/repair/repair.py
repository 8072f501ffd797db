"""Repair: restores lost or damaged files from other copies of them. It deletes nothing.

At the end the whole stream is verified, and the report lists what stays damaged.

- A lost or wrong hint is written again.
- An inline frame that fails its checksum is copied from another commit file that has it.
- A damaged status object is copied from its twin, and a twin from its object.
- Commits, then objects, are copied from a mirror that has them.
- A lost newest commit can't be rebuilt. With `allow_loss`, and only then, the stream continues from
  the newest readable commit, with the next generation, so that earlier positions are refused. It
  continues without mirrors: those have the lost commits, or lack the number that the log skipped.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from segstore_ds.errors import (
    ConflictError,
    CorruptionError,
    FencedError,
    FormatError,
    InternalError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from segstore_ds.format import names
from segstore_ds.format.envelope import digest_of
from segstore_ds.format.operation import Operation
from segstore_ds.format.redactions import redactions_of
from segstore_ds.format.root import HistoryRow, Root, check_writable
from segstore_ds.log.commit import Change
from segstore_ds.log.context import StreamContext
from segstore_ds.log.metadata_log import find_gaps
from segstore_ds.log.origins import share_origins
from segstore_ds.log.place import no_stream
from segstore_ds.log.seen import ABANDONED, abandoned_through, hint_of, is_proof
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.log.transition import broken_invariants
from segstore_ds.publish.check import advise, mend_tables
from segstore_ds.publish.latest import latest_storage
from segstore_ds.repair.copies import FrameRepair, restore_commits, restore_log, restore_objects
from segstore_ds.repair.verify import MISSING, Problem, run_verify
from segstore_ds.repair.witnesses import find_witnesses
from segstore_ds.status.history import NO_NOTE, NUMBERS_SKIPPED, describe_commit
from segstore_ds.status.references import read_references
from segstore_ds.status.table import Slot


@dataclass(slots=True)
class RepairReport:
    """What `repair` found and did.

    Attributes:
        repaired: What was restored, and from where.
        lost: The versions that can't be read and were abandoned.
        damaged: What stays damaged: the object, what is wrong with it, and a command to run.
        version: The newest version after the repair.
        generation: Its generation; higher than before if versions were abandoned.
    """

    repaired: list[str] = field(default_factory=list)
    lost: range = range(0)
    damaged: list[str] = field(default_factory=list)
    version: int = 0
    generation: int = 0

    @property
    def ok(self) -> bool:
        """True if nothing is damaged afterwards."""
        return not self.damaged


def run_repair(
    context: StreamContext,
    *,
    allow_loss: bool,
    allow_promoted: bool = False,
    allow_redacted: bool = False,
    replica: str | None = None,
) -> RepairReport:
    """Restore what has another copy; safe to repeat. Stop writers first."""
    report = RepairReport()
    if replica is not None:
        report.repaired += restore_log(context, replica)
    base, _ = newest_readable(context)
    report.repaired += _set_aside(context, base)
    _refuse_strays(context, base)
    taken = context.log.seams.of(base).catch_up(base, allow_promoted=allow_promoted)
    if taken is None:
        report.repaired += restore_commits(context, base)
    else:
        report.repaired += [f"{path} from the primary" for path in taken]
    base, lost = newest_readable(context)
    lost = _with_witnessed(context, base, lost)
    if lost:
        report.lost = lost
        if not allow_loss:
            raise CorruptionError(
                "the newest commits are gone or can't be read",
                remedy="restore the files from a backup, or with replica=url from a replica of "
                "this folder; or repair with allow_loss=True, which loses these commits and "
                "continues from the version before them; if only "
                f"{names.HINT_PATH} names them and it is wrong, delete it",
                url=context.storage.url,
                lost=len(lost),
                first=lost[0],
                last=lost[-1],
                version=base.version,
            )
        alone, notes = context.log.seams.of(base).alone(base, allow_promoted=allow_promoted)
        if not allow_redacted:
            _refuse_lost_redactions(context, base)
        _continue_from(context, alone, lost)
        report.repaired += [f"the log continues from version {base.version}", *notes]
    report.repaired += [
        f"redaction {known.redact_id!r} is not finished: call redact again with its redact_id"
        for known in (redactions_of(base).values() if lost else ())
        if not known.done
    ]
    report.repaired += _forget_before_gaps(context) if allow_loss and taken is None else []
    frames = FrameRepair(context, context.log.reopen()).run()
    report.repaired += frames.repaired
    root = context.log.reopen()
    report.repaired += restore_objects(context, root)
    report.damaged += frames.damaged
    _repair_hint(context, report)
    if taken is None:
        report.repaired += mend_tables(context)
    report.damaged = _list_damage(context, report.damaged)
    report.version, report.generation = context.log.root.version, context.log.root.generation
    if taken is None:
        _repair_mirrors(context, report, allow_promoted=allow_promoted)
    return report


def _repair_mirrors(context: StreamContext, report: RepairReport, *, allow_promoted: bool) -> None:
    """Repair the mirrors of a primary; add what was done to the report."""
    root, seams = context.log.root, context.log.seams
    try:
        seams.of(root).before_staging(root)
    except FencedError:
        return
    for files in seams.copies(root):
        url, log = files.storage.url, StreamLog(files.storage, clock=context.clock, damaged=True)
        try:
            report.repaired += [
                f"{url}/{path}"
                for path in seams.of(root).mend(root, url, allow_promoted=allow_promoted)
            ]
            theirs = run_repair(StreamContext.of(log), allow_loss=False)
        except (FencedError, FormatError, NotFoundError, StorageError) as error:
            report.damaged.append(f"{url}: {error}")
            continue
        report.repaired += [f"{url}: {line}" for line in theirs.repaired]
        report.damaged += [f"{url}: {line}" for line in theirs.damaged]


def _forget_before_gaps(context: StreamContext) -> list[str]:
    """Forget the versions up to a gap in the log: older versions are lost, but no events."""

    def build(root: Root, _slot: Slot) -> Change[range | None]:
        numbers = [number for number in context.log.files.numbers() if number <= root.version]
        start = max(root.log_start, abandoned_through(root) + 1)
        gaps = find_gaps(numbers, start, root.version)
        if not gaps:
            return Change(None)
        gap = gaps[-1]
        return Change(replace(root, log_start=gap.stop, operation=Operation.PURGE), gap)

    gap = context.log.commit(build).result
    return [f"versions before {gap.stop} are forgotten: {gap[-1]} is missing"] if gap else []


def _repair_hint(context: StreamContext, report: RepairReport) -> None:
    """Write the hint if it is wrong, and report whether it reads back."""
    if context.log.files.read_hint() == hint_of(context.log.root):
        return
    context.log.write_hint(context.log.root)
    if context.log.files.read_hint() == hint_of(context.log.root):
        report.repaired.append("the hint")
    else:
        report.damaged.append(f"{names.HINT_PATH} can't be written: is the folder read-only?")


def _list_damage(context: StreamContext, unrestored: list[str]) -> list[str]:
    """Return all that is damaged now, with a remedy each; `unrestored` has some of the texts."""
    damaged: dict[str, str] = {}
    for problem in run_verify(context).problems:
        path = re.split(r": |\[", problem.where)[0]
        texts = [text for text in unrestored if text.startswith((problem.where, path))]
        text = texts[0] if texts else f"{problem.where}: {problem.what}"
        key = texts[0] if texts else problem.where
        damaged.setdefault(key, _advise(context, problem, text))
    return [*damaged.values(), *(text for text in unrestored if text not in damaged)]


def _advise(context: StreamContext, problem: Problem, text: str) -> str:
    """Return a text about a problem with the command to run appended."""
    url, (folder, _, name) = context.storage.url, problem.where.partition("/")
    if "allow_loss=True" in text:
        return text
    if MISSING in text:
        loss = f"segstore repair {url} --allow-loss, which forgets the versions before them"
        return f"{text}; restore the files from a backup, or call: {loss}"
    if folder == names.READERS_FOLDER:
        name = name.partition("/")[0]
        return (
            f"{text}; call: segstore readers {url} --release {name}, then register the reader again"
        )
    if folder in names.TABLE_FOLDERS:
        return f"{text}; {advise(context.storage, context.log.root.stream_id, problem.where)}"
    latest = latest_storage(context.storage).url if context.storage.outer() is not None else ""
    if latest and problem.where.startswith(latest):
        return f"{text}; call: segstore repair {latest}; or remove the table and publish it again"
    tags = [t for t, tag in context.log.root.kept_tags.items() if tag.version == problem.version]
    if tags:
        command = f"stop keeping that version: segstore tag {url} {tags[0]} --delete"
    elif problem.version is not None:
        kept = context.log.root.version - problem.version
        command = f"forget versions: segstore maintain {url} --keep 1h --min-versions {kept}"
    else:
        command = f"copy the rest: segstore salvage {url} NEW_URL --skip-damaged"
    return f"{text}; restore the object from a backup, or {command}"


def newest_readable(context: StreamContext) -> tuple[Root, range]:
    """Return the newest commit that can be read, and the versions after it that can't.

    Numbers that are too far above it are ignored: a flipped bit in a file's name may cause them.
    """
    hint, numbers = context.log.files.read_hint(), context.log.files.numbers()
    hinted = hint.number if hint is not None else 0
    for number in reversed(numbers):
        try:
            root = context.log.files.get(number)
        except FormatError:
            continue
        # A file whose name and version differ is not a commit of this log.
        if root is None or root.version != number or list(broken_invariants(root)):
            continue
        apart = number > root.log_start and number - 1 not in numbers
        if apart and hint is not None and hint.stream_id not in ("", root.stream_id):
            continue  # a commit of another stream, after a gap
        context.log.check_open(root)
        share_origins(context.storage, root)
        candidates = [*numbers, hinted]
        newest = max(version for version in candidates if version <= number + NUMBERS_SKIPPED)
        newest = max(newest, hinted if is_proof(hint, root) else 0)
        return root, range(number + 1, max(newest, number) + 1)
    if not numbers:
        raise no_stream(context.storage)
    raise NotFoundError(
        "no commit can be read",
        remedy="restore the files of log/ from a backup, or with repair(url, replica=other) from "
        "a replica of this folder; if it is a replica itself, repair its primary",
        url=context.storage.url,
        versions=numbers[:20],
    )


def _set_aside(context: StreamContext, base: Root) -> list[str]:
    """Move files out of the log that follow a gap and are no commits of the stream.

    A commit after the newest one would have the same stream, the number in its name, and no earlier
    generation.
    """
    files, moved = context.log.files, list[str]()
    numbers = [number for number in files.numbers() if number > base.version]
    if base.version + 1 in numbers:
        return moved
    for number in numbers:
        try:
            root = files.get(number)
        except FormatError:
            continue  # it may be a lost commit
        if root is None or (
            (root.version, root.stream_id) == (number, base.stream_id)
            and root.generation >= base.generation
        ):
            continue
        path = files.path(number)
        data = context.storage.get(path)
        if files.read(number) != data:  # one answer had a wrong bit: the next call moves it
            continue
        aside = f"{names.ASIDE_FOLDER}/{names.build_log_name(number)}-{digest_of(data)}"
        context.storage.create(aside, data)  # durable before the original is deleted
        context.storage.delete(path)
        moved.append(f"{path} is no commit of this stream, and was moved to {aside}")
    return moved


def _refuse_strays(context: StreamContext, base: Root) -> None:
    """Refuse numbers far above all commits: a listing would take the last for the newest commit."""
    numbers = context.log.files.numbers()
    strays = [number for number in numbers if number > base.version + NUMBERS_SKIPPED]
    if strays:
        raise CorruptionError(
            "files far beyond the newest commit do not belong to the stream",
            remedy="move them out of the log, then repair again",
            url=context.storage.url,
            paths=[context.log.files.path(number) for number in strays[:20]],
            version=base.version,
        )


def _with_witnessed(context: StreamContext, base: Root, lost: range) -> range:
    """Return the lost versions, including those that only a witness knows."""
    versions = [witness.version for witness in find_witnesses(context, base)]
    if not versions:
        return lost
    # If the log has another commit of a witnessed version, the witnessed commit is lost.
    last = max([*versions, *lost[-1:]])
    return range(min(base.version + 1, *versions), last + 1)


def _continue_from(context: StreamContext, base: Root, lost: range) -> None:
    """Commit a root of the next generation after `base`, without the lost versions."""
    check_writable(base)
    # The first free number: readers that probe for the next version would not see it after a gap.
    version = max(context.log.files.numbers()) + 1
    root = replace(
        base,
        version=version,
        parent=base.transaction,
        transaction=context.clock.new_id(),
        time_us=max(base.time_us, context.clock.wall_us()),
        generation=base.generation + 1,
        properties={**base.properties, ABANDONED: names.build_log_name(lost[-1])},
        next_segment=base.next_segment + NUMBERS_SKIPPED,
        restored=None if base.restored is None else version,
        operation=Operation.REPAIR,
        client=context.client,
    )
    row = replace(describe_commit(base, root, NO_NOTE), segments=0, bytes=0)
    before = context.log.history.tidy(
        replace(base, history=(*base.history, *_rows_of_lost(base, row))),
        Slot(version, root.time_us, 0),
    )
    root = replace(
        root,
        history=(*before.history, row),
        history_parts=before.history_parts,
        history_lists=before.history_lists,
        retired=before.retired,
    )
    broken = list(broken_invariants(root))
    if broken:
        raise InternalError("the repair would commit an invalid root", rules=broken)
    if not context.log.files.add(root.version, root):
        raise ConflictError("another writer committed first", version=root.version)
    context.log.write_hint(root)


def _rows_of_lost(base: Root, row: HistoryRow) -> Iterator[HistoryRow]:
    """Yield a row for each lost version between the base and the repair."""
    if base.history:
        for version in range(base.version + 1, row.version):
            yield replace(row, version=version, operation=Operation.LOST, transaction="")


def _refuse_lost_redactions(context: StreamContext, base: Root) -> None:
    """Raise InvalidInputError if a lost commit may be of a redaction.

    Segments of redactions have names of their own. If the newest readable commit neither lists nor
    has retired such a segment, a lost commit or a killed redaction has made it.
    """
    listed = (info.path for info in context.storage.list(names.SEGMENTS_FOLDER))
    redacted = {path for path in listed if names.is_redacted(path)}
    unknown = redacted - _known(context, base) if redacted else redacted
    if unknown:
        raise InvalidInputError(
            "a lost commit may be a redaction, and the redacted values would come back",
            remedy="restore the files from a backup; or repair with allow_redacted=True, then "
            "redact again, with the same redact_id or another one",
            url=context.storage.url,
            version=base.version,
            objects=sorted(unknown)[:20],
        )


def _known(context: StreamContext, base: Root) -> set[str]:
    """Return the objects that a version lists or has retired; none if it can't be read."""
    try:
        refs = read_references(context.status, base)
    except FormatError:
        return set()
    return {*refs.live, *refs.retired}
