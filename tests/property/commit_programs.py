"""The actors of the commit protocol's model, and mutants of the real code for them to trip over."""

from contextlib import suppress
from dataclasses import replace

from actors import Actor, Program
from commit_ghost import NOW_S, Ghost, check_world, decode, first_files, first_root, observe
from interleaving import Scene

from segstore_ds.errors import CommitUnknownError, ConflictError, NotFoundError, StorageError
from segstore_ds.format.envelope import encode_envelope
from segstore_ds.format.names import Hint
from segstore_ds.format.root import Root, encode_root
from segstore_ds.log.commit import Change
from segstore_ds.log.context import StreamContext
from segstore_ds.log.lookup import find_outcome
from segstore_ds.log.metadata_log import MARK_BYTES, MetadataLog
from segstore_ds.log.newest import ROOT_CODEC, Base
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.retention.deletion import run_maintain
from segstore_ds.retention.drop import DroppableLog, commit_drop, purge_dropped
from segstore_ds.status.history import NO_NOTE, describe_commit
from segstore_ds.status.table import Slot

HOURS = 2 * 3600  # past the grace
PUTS = 2  # how often a commit file is put before its outcome is unknown


# --- programs ------------------------------------------------------------------------------------


def open_log(
    actor: Actor,
    log_class: type[StreamLog] = StreamLog,
    files_class: type[MetadataLog] = MetadataLog,
    *,
    hints: bool = True,
) -> StreamLog:
    log = log_class(actor.storage, clock=actor.clock)
    if not hints:
        log._hints._last_s = float("inf")
    log.files = files_class(actor.storage, "log", ROOT_CODEC, clock=actor.clock)
    return log


def commit(actor: Actor, log: StreamLog, transaction: str, *, attempts: int = 3) -> None:
    """Commit nothing but the transaction, note how it ended, and ask where that is unknown."""

    def build(root: Root, _slot: Slot) -> Change[None]:
        return Change(replace(root, operation="append"))

    try:
        done = log.commit(build, transaction=transaction, attempts=attempts)
    except CommitUnknownError as error:
        with suppress(NotFoundError):  # dropped meanwhile: nobody can tell any more
            answer = find_outcome(open_log(actor), transaction, error.fields["version"])
            actor.note("outcome", answer.state.value, transaction)
    except (ConflictError, NotFoundError, StorageError):
        actor.note("denied", transaction)
    else:
        actor.note("acknowledged", transaction, done.root.version)


def writer(
    *transactions: str,
    before: tuple[str, ...] = (),
    attempts: int = 3,
    sleeps: int = 0,
    purges: bool = False,
    hints: bool = True,
    log_class: type[StreamLog] = StreamLog,
    files_class: type[MetadataLog] = MetadataLog,
) -> Program:
    """Commit from a handle that stands on the first version; then sleep and purge, if asked to.

    What is committed `before` is there before the exploration begins.
    """

    def run(actor: Actor) -> None:
        log = open_log(actor, log_class, files_class, hints=hints)
        log.reopen()
        for transaction in before:
            commit(actor, log, transaction)
        actor.note("ready")
        for transaction in transactions:
            commit(actor, log, transaction, attempts=attempts)
        if sleeps:
            actor.clock.sleep(sleeps)
        if purges:
            purge(log)

    return run


def purger(
    *,
    before: tuple[str, ...] = ("c1", "c2", "c3", "c4"),
    hints: bool = True,
    files_class: type[MetadataLog] = MetadataLog,
) -> Program:
    """Purge the older ones of some commits once they are two hours old."""
    return writer(before=before, sleeps=HOURS, purges=True, hints=hints, files_class=files_class)


def purge(log: StreamLog) -> None:
    try:
        run_maintain(StreamContext.of(log), keep_s=0)
    except (CommitUnknownError, ConflictError, StorageError):
        return


def looker(*, fresh: bool = False, log_class: type[StreamLog] = StreamLog) -> Program:
    """Look for the newest version: from a handle on the first one, or from a fresh one."""

    def run(actor: Actor) -> None:
        log = open_log(actor, log_class)
        if not fresh:
            log.reopen()
        actor.note("ready")
        actor.note("looks")
        try:
            root = log.refresh()
        except StorageError:
            return
        actor.note("saw", root.version, root.transaction)

    return run


def straggler(transaction: str) -> Program:
    """Be a writer that stands before its put, and dies after it."""

    def run(actor: Actor) -> None:
        log = open_log(actor)
        base = log.reopen()
        root = replace(
            base, version=base.version + 1, parent=base.transaction, transaction=transaction
        )
        row = describe_commit(base, root, NO_NOTE)
        actor.note("ready")
        body = encode_root(replace(root, history=(*base.history, row)))
        try:
            actor.storage.create(log.files.path(root.version), encode_envelope(body))
        except StorageError:
            return

    return run


def hinter(number: int) -> Program:
    """Write a hint that was due long ago."""

    def run(actor: Actor) -> None:
        actor.note("ready")
        open_log(actor).files.write_hint(Hint(number))

    return run


def creator(stream_id: str, *, sleeps: int = 0) -> Program:
    """Create the stream, commit twice to whatever is there then, and purge if it sleeps."""

    def run(actor: Actor) -> None:
        log = open_log(actor, hints=False)
        actor.note("ready")
        first = first_root(f"{stream_id}0", stream_id, actor.clock.wall_us())
        try:
            if log.create(first):
                actor.note("created", stream_id)
        except (CommitUnknownError, StorageError):
            return
        for number in (1, 2, 3) if sleeps else (1,):
            commit(actor, log, f"{stream_id}{number}")
        if sleeps:
            actor.clock.sleep(sleeps)
            purge(log)

    return run


def dropper(*stream_ids: str) -> Program:
    """Drop the stream, create another one in its place and commit to that; so once for each id."""

    def run(actor: Actor) -> None:
        actor.note("ready")
        with suppress(CommitUnknownError, NotFoundError, StorageError):
            for stream_id in stream_ids:
                log = DroppableLog(actor.storage, clock=actor.clock, damaged=True)
                log._hints._last_s = float("inf")
                log.reopen()
                commit_drop(log, "")
                purge_dropped(log)
                made = open_log(actor, hints=False)
                first = first_root(f"{stream_id}0", stream_id, actor.clock.wall_us())
                if made.create(first) is not None:
                    actor.note("created", stream_id)
                commit(actor, made, f"{stream_id}1")

    return run


def scene(actors: dict[str, Program], **options) -> Scene:
    """Return a scene over a stream of one version, unless it is given another past."""
    past = {"ghost": Ghost(chain=(("t0", NOW_S),)), "files": first_files(), "check": check_world}
    return Scene(actors=actors, observe=observe, now_s=NOW_S, **{**past, **options})


# --- mutants: each lacks one thing the protocol needs --------------------------------------------


class NoLateCheck(StreamLog):
    """Takes a won slot for a commit however long ago the base was confirmed."""

    def _settle_late(self, _root: Root, _began: float, *, won: bool) -> bool:
        return won


class TrustsAnyLoss(StreamLog):
    """Takes a slot that holds other bytes for lost, however long ago the put began."""

    def _settle_late(self, root: Root, began: float, *, won: bool) -> bool:
        return super()._settle_late(root, began, won=True) if won else False


class StandsOnAnything(StreamLog):
    """Takes whatever is in the slot for the next base, however long ago its own was confirmed."""

    def _rebase_on(self, base: Base, data: bytes, version: int) -> bool:  # noqa: ARG002
        now_s = self.clock.boot_s()
        self._rebase(Base(decode(data), now_s, now_s, data[:MARK_BYTES]))
        return True


class FollowsNames(StreamLog):
    """Follows the log by name from a base of any age."""

    def refresh(self) -> Root:
        base = self._base
        if base is None:
            return self.open()
        return self._confirm(lambda: self._climb(base))


class LosesToItself(MetadataLog):
    """Takes "not found" after a put whose answer was lost for a lost race."""

    def add_or_read(self, number: int, batch: Root) -> bytes | None:
        path, data = self.path(number), encode_envelope(ROOT_CODEC.encode(batch))
        try:
            won = self.storage.create(path, data)
        except StorageError:
            won = self._read(path) == data
        return None if won else self._read(path) or b"nothing"
