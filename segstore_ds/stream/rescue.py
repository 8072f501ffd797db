"""Rescue of damaged streams: verify, repair and salvage, by location, as one may not open."""

from collections.abc import Mapping
from typing import Any

from segstore_ds.errors import FormatError, UnsupportedVersionError
from segstore_ds.format import names
from segstore_ds.log.clock import SYSTEM_CLOCK, Clock
from segstore_ds.log.context import client_name, new_context
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.options.arguments import Progress, unheard
from segstore_ds.repair.repair import RepairReport, newest_readable, run_repair
from segstore_ds.repair.salvage import Salvager, SalvageReport
from segstore_ds.repair.verify import Problem, Report, run_verify
from segstore_ds.retention.drop import run_drop
from segstore_ds.storage import UrlLike, open_storage
from segstore_ds.stream.stream import Stream
from segstore_ds.write.create import run_create


def repair(
    url: UrlLike,
    *,
    allow_loss: bool = False,
    allow_promoted: bool = False,
    allow_redacted: bool = False,
    replica: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    single_writer: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> RepairReport:
    """Replace what is lost or damaged by other copies of it; deletes nothing.

    A file in the log that is no commit of the stream is moved to ``aside/``.

    What is lost here is copied from folders that replicate this one, and what they lack is copied
    to them; a replica takes it from the folder that it replicates. A lost hint is written again.
    Events that are damaged in one commit file are copied from another one that holds them. Status
    objects are copied from their twins, and twins from their objects; what is lost under both names
    needs a replica or a backup. Nothing is guessed. At the end the whole stream is verified, and
    what stays damaged is listed with the command for it. A newest commit that can't be read is left
    behind only with `allow_loss`: the stream continues from the commit before, as another
    generation. Stop writers first. Safe to repeat.

    Args:
        url: The stream.
        allow_loss: Leave unreadable newest commits behind, and forget versions before a gap.
        allow_promoted: With `allow_loss`: continue even if a folder that replicates this one can't
            be asked whether it was promoted. Also replace a damaged commit file there that may hide
            a promotion. If there was one, two streams continue under one id.
        allow_redacted: With `allow_loss`: continue even if a redaction may be among the lost
            commits. Its values come back until it is called again.
        replica: A folder that replicates this one and has commits that the log lacks: needed only
            if the commits that name it are lost, or all are.
        storage_options: As in `open`.
        single_writer: As in `open`.
        clock: Time and ids.

    Raises:
        NotFoundError: There is no stream, or none of its commits can be read.
        CorruptionError: The newest commits can't be read, and loss is not allowed; names them.
        FencedError: Another folder was promoted in place of this one; or this one is a replica
            whose commits can't be read, and the other one continues.
        InvalidInputError: A redaction may be lost, and that is not allowed; or `replica` does not
            replicate this folder.
        StorageError: Also if another folder can't be read, and may have been promoted.

    Examples:
        >>> segstore.repair("hello").ok
        True
    """
    storage = open_storage(url, storage_options, single_writer=single_writer)
    return run_repair(
        new_context(StreamLog(storage, clock=clock, damaged=True)),
        allow_loss=allow_loss,
        allow_promoted=allow_promoted,
        allow_redacted=allow_redacted,
        replica=replica,
    )


def verify(
    url: UrlLike,
    *,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress = unheard,
    clock: Clock = SYSTEM_CLOCK,
) -> Report:
    """Read a whole stream and report what is wrong with it, also if damage keeps it from opening.

    Changes nothing. `Stream.verify` does the same for a stream that opens.

    Args:
        url: The stream.
        storage_options: As in `open`.
        progress: Gets how many events and versions are done, and of how many, after each step.
        clock: Time and ids.

    Raises:
        NotFoundError: There is no stream.
        UnsupportedVersionError: A newer version of segstore wrote it, so nothing can be said.

    Examples:
        >>> segstore.verify("hello").check().rows  # `check` raises what is wrong
        3
    """
    storage = open_storage(url, storage_options, single_writer=True)
    log, damage = StreamLog(storage, clock=clock), None
    try:
        log.open()
    except UnsupportedVersionError:
        raise
    except FormatError as error:
        damage = error
    report = run_verify(new_context(log), progress=progress)
    if damage is not None:
        # What keeps the stream from opening is damage, even if no object is at fault.
        found = Problem.of(damage, names.LOG_FOLDER)
        if all(problem.what != found.what for problem in report.problems):
            report.problems.append(found)
    return report


def salvage(
    url: UrlLike,
    new_url: UrlLike,
    *,
    skip_damaged: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> SalvageReport:
    """Write what can be read of a damaged stream into a new one; the old one does not change.

    If the newest version can't be read somewhere, salvage reads what any kept version lists for the
    same offsets. The new stream's offsets start at 0; the report maps old offsets to new ones.
    Tags, readers and writers are not copied. Damage is an error that names the place, and then
    there is no new stream.

    Args:
        url: The damaged stream.
        new_url: A location without a stream.
        skip_damaged: Leave out what can't be read, and report it.
        storage_options: For both locations, flat or keyed by URL prefix.
        clock: Time and ids.

    Raises:
        NotFoundError: There is no stream, or none of its commits can be read.
        AlreadyExistsError: There is a stream at the new location.
        CorruptionError: Something can't be read, and must not be skipped.

    Examples:
        >>> segstore.salvage("hello", "rescued", skip_damaged=True).lost
        []
    """
    old = open_storage(url, storage_options, single_writer=True)
    new = open_storage(new_url, storage_options)
    context = new_context(StreamLog(old, clock=clock, damaged=True))
    root, lost = newest_readable(context)
    context.log.adopt(root)
    report = SalvageReport(new.url, root.version, lost)
    salvager = Salvager(context, root, skip_damaged=skip_damaged, report=report)
    made = new_context(StreamLog(new, clock=clock))
    run_create(made, salvager.schema, spark_schema=salvager.spark)
    stream = Stream(made)
    try:
        stream.append(salvager)
    except BaseException:
        # It was created above; an append with an unknown outcome may have filled it.
        run_drop(new, confirm=new.url, clock=clock, client=client_name())
        raise
    return report
