"""Actors of retention beside those that write, compact and read, and what their ghost checks.

The ghost keeps every commit's bytes. Whatever the order of steps, every segment is there that a
kept version lists, or one that was superseded less than the grace ago: so no reader that is pinned
to such a version, however slow, misses one. And no retention passes a reader that has registered.
"""

import functools
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa
from actors import Actor, Program, Request, answer
from commit_ghost import NOW_S, first_root
from commit_programs import open_log
from interleaving import Event, Play, Scene, Violation

from segstore_ds.compact.commit import Replacement, commit_groups
from segstore_ds.errors import (
    CommitUnknownError,
    ConflictError,
    FormatError,
    InvalidInputError,
    MissingObjectError,
    SnapshotExpiredError,
    StorageError,
    TruncatedError,
)
from segstore_ds.format import names
from segstore_ds.format.batch_fingerprint import BatchFacts
from segstore_ds.format.envelope import decode_envelope, encode_envelope
from segstore_ds.format.policies import UPKEEP_PROPERTY, RetentionPolicy, UpkeepPolicy
from segstore_ds.format.root import Epoch, Root, SegmentEntry, encode_root
from segstore_ds.format.schema.codec import encode_schema
from segstore_ds.log.context import StreamContext
from segstore_ds.log.newest import ROOT_CODEC
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.read.cuts import Cut
from segstore_ds.retention.deletion import run_maintain
from segstore_ds.retention.readers import register_reader
from segstore_ds.retention.retain import apply_policy
from segstore_ds.retention.tags import run_tag
from segstore_ds.retention.truncate import run_restore, run_truncate
from segstore_ds.retention.upkeep import run_upkeep
from segstore_ds.status.table_status import TableStatus
from segstore_ds.write.append import Appender, AppendPlan
from segstore_ds.write.job import WriteJob
from segstore_ds.write.layout import Layout
from segstore_ds.write.request import WriteRequest

DAY, HOUR = 86_400, 3600
GRACE_S = DAY
FREE_S = 300  # of who frees a full disk
SCHEMA = pa.schema([("n", pa.int64())])
GIVEN_UP = (CommitUnknownError, ConflictError, StorageError, SnapshotExpiredError, FormatError)


@dataclass(frozen=True, slots=True)
class Past:
    """The chain holds (bytes of the commit, second it landed) by version."""

    chain: tuple[tuple[bytes, int], ...] = ()
    acknowledged: frozenset[str] = frozenset()
    readers: tuple[tuple[str, int], ...] = ()  # name -> offset, once registration has returned
    landed: tuple[tuple[str, int], ...] = ()  # name -> when its newest record came
    held: tuple[tuple[str, int, int], ...] = ()  # name, offset, until when; as publishing returned
    deleted: frozenset[str] = frozenset()
    grace_s: int = GRACE_S


@functools.cache
def decode(data: bytes) -> Root:
    """Return the root that a commit file holds."""
    return ROOT_CODEC.decode(decode_envelope(data, where="model"), "model")


def observe(past: Past, event: Event) -> Past:
    """Follow commits, deletions and what actors were told."""
    path = event.request.path
    if event.verb == "note":
        return _noted(past, event)
    number = names.parse_log_name(path.rpartition("/")[2]) if path.startswith("log/") else None
    if event.verb == "made" and number == len(past.chain):
        return replace(past, chain=(*past.chain, (event.request.data, event.now_s)))
    hinted = path.startswith(names.READER_HINTS_FOLDER)
    if event.verb == "made" and path.startswith("readers/") and not hinted:
        name = path.split("/")[1]
        landed = (*(commit for commit in past.landed if commit[0] != name), (name, event.now_s))
        return replace(past, landed=landed)
    if event.verb == "gone" and not path.startswith(("log/", "readers/")):
        return replace(past, deleted=past.deleted | {path})
    return past


def _noted(past: Past, event: Event) -> Past:
    kind, *payload = event.request.payload
    if kind == "missed":
        version, path = payload
        superseded = past.chain[version + 1][1] if version + 1 < len(past.chain) else event.now_s
        if event.now_s - superseded <= past.grace_s:
            raise Violation(f"a reader of version {version} misses {path}")
    if kind == "freeing":
        return replace(past, grace_s=FREE_S)
    if kind == "acknowledged":
        return replace(past, acknowledged=past.acknowledged | {payload[0]})
    if kind == "registered":
        return replace(past, readers=(*past.readers, (payload[0], payload[1])))
    if kind == "held":
        name, offset, lapse_s = payload
        past = replace(past, held=(*past.held, (name, offset, dict(past.landed)[name] + lapse_s)))
        _check_held(past, event.now_s)
    return past


def check(files: Mapping[str, bytes], now_s: int, past: Past) -> None:
    """Every version that is kept, or young enough, has all its objects; readers are waited for."""
    if not past.chain:
        return
    newest = decode(past.chain[-1][0])
    for version, (data, _) in enumerate(past.chain):
        superseded = past.chain[version + 1][1] if version + 1 < len(past.chain) else now_s
        if now_s - superseded <= HOUR and f"log/{version:020d}" not in files:
            raise Violation(f"version {version} is gone from the log")
        young = version >= newest.log_start or now_s - superseded <= past.grace_s
        if not young and newest.kept_version(version) is None:
            continue
        missing = sorted(path for path in _listed(data, files) if path not in files)
        if missing:
            raise Violation(f"version {version} misses {missing}")
    for name, offset in past.readers:
        if newest.head > offset:
            raise Violation(f"reader {name} at {offset} lost events below {newest.head}")
    _check_held(past, now_s)


def _check_held(past: Past, now_s: int) -> None:
    """Until it lapses nothing is dropped that a reader needs whose publication has returned."""
    head = decode(past.chain[-1][0]).head
    for name, offset, until_s in past.held:
        if head > offset and now_s <= until_s:
            raise Violation(f"reader {name} held {offset} and lost events below {head}")


@functools.cache
def _listed(data: bytes, files: Mapping[str, bytes]) -> frozenset[str]:
    """Return the objects that a commit lists; a part that is missing is one of them."""
    root = decode(data)
    tags = root.kept_tags.items()
    kept = (root.kept[name].parts for name, tag in tags if tag.version == root.version)
    parts = {part.path for part in (*root.parts, *kept)}
    if not parts <= set(files):
        return frozenset(parts)
    return frozenset(parts | {path for _, path in _placed(data, files)})


@functools.cache
def _placed(data: bytes, files: Mapping[str, bytes]) -> tuple[tuple[int, str], ...]:
    """Return the offset and the object of each segment that a commit lists from the head on."""

    def ask(request: Request) -> object:
        return answer(files, 0, request)

    root, status = decode(data), TableStatus(Actor("checker", ask).storage)
    placed = status.segments(root, root.head, root.tail)
    return tuple((each.start, names.segment_object(each.entry.path)) for each in placed)


# --- programs ------------------------------------------------------------------------------------


def staged(actor: Actor, version: int, letter: str) -> AppendPlan:
    """Stage a segment of one event for a job that was planned on a version."""
    nonce = letter * 12
    token = names.build_token(version, nonce)
    path = names.build_segment_path(token, "0-0-0.arrow")
    actor.storage.create(names.segment_object(path), b"events")
    segment = SegmentEntry(0, path, 1, 6, 1, 0)
    job = WriteJob(actor.storage, token, nonce, WriteRequest(SCHEMA, Layout(), ""), SCHEMA)
    return AppendPlan(job, (segment,), BatchFacts(1, {}))


def commit(actor: Actor, log: StreamLog, plan: AppendPlan) -> None:
    """Commit what was staged, and note when that is acknowledged."""
    try:
        Appender(StreamContext.of(log)).commit(plan)
    except GIVEN_UP:
        return
    actor.note("acknowledged", plan.job.transaction)


def acting(work: Callable[[Actor, StreamContext], object]) -> Program:
    """Run one operation on a handle that has listed the log."""

    def run(actor: Actor) -> None:
        log = open_log(actor, hints=False)
        log.reopen()
        actor.note("ready")
        try:
            work(actor, StreamContext.of(log))
        except (*GIVEN_UP, TruncatedError):
            return

    return run


def job(letter: str, *, staged_on: int) -> Program:
    """Commit what was staged on a version before the exploration began."""

    def run(actor: Actor) -> None:
        log = open_log(actor, hints=False)
        log.reopen()
        plan = staged(actor, staged_on, letter)
        actor.note("ready")
        commit(actor, log, plan)

    return run


def appender(letter: str, *, overwrites: bool = False) -> Program:
    """Stage one event and commit it, in place of what is there if asked."""

    def work(actor: Actor, context: StreamContext) -> None:
        log = context.log
        plan = staged(actor, log.root.version, letter)
        if overwrites:
            plan = replace(plan, job=replace(plan.job, overwrite_to=log.root.tail))
        commit(actor, log, plan)

    return acting(work)


def pinned(version: int) -> Program:
    """Read every segment of a version, as a scan does that was planned long ago."""

    def run(actor: Actor) -> None:
        log = open_log(actor, hints=False)
        log.reopen()
        root = log.read_version(version)
        placed = list(TableStatus(actor.storage).segments(root, root.head, root.tail))
        actor.note("ready")
        for one in placed:
            path = names.segment_object(one.entry.path)
            try:
                actor.storage.get(path)
            except MissingObjectError:
                actor.note("missed", version, path)

    return run


def compactor(letter: str) -> Program:
    """Put one segment in the place of all that are listed now."""

    def work(actor: Actor, context: StreamContext) -> None:
        root = context.log.root
        placed = list(context.status.segments(root, root.head, root.tail))
        path = names.build_segment_path(names.build_token(root.version, letter * 12), "0-0-0.arrow")
        actor.storage.create(names.segment_object(path), b"events")
        rows = sum(segment.entry.rows for segment in placed)
        inputs = tuple((segment.entry.segment_id, segment.entry.path) for segment in placed)
        output = SegmentEntry(0, path, rows, 6, 1, 0)
        run = Replacement(placed[0].start, inputs, rows, root.epoch.number, (output,))
        commit_groups(context, [run])

    return acting(work)


def truncater(offset: int) -> Program:
    """Truncate to an offset."""
    return acting(lambda _, context: run_truncate(context, Cut("offset", offset)))


def keeper() -> Program:
    """Let a tag keep the newest version."""
    tail = Cut("tail")
    return acting(lambda _, context: run_tag(context, "kept", tail, move=True, keep=True))


def restorer(version: int) -> Program:
    """Bring a version back, where no redaction came first."""

    def work(_: Actor, context: StreamContext) -> None:
        with suppress(InvalidInputError):
            run_restore(context, version)

    return acting(work)


def vacuumer(grace_s: int = GRACE_S) -> Program:
    """Delete the objects that nothing needs."""
    return acting(lambda _, context: run_maintain(context, grace_s=grace_s, short_grace=True))


def purger() -> Program:
    """Forget as many versions as may be."""
    return acting(lambda _, context: run_maintain(context, keep_s=0))


def freer() -> Program:
    """Free a full disk, which ends the grace of readers but for the last minutes."""

    def work(actor: Actor, context: StreamContext) -> None:
        actor.note("freeing")
        run_maintain(context, free_now=True)

    return acting(work)


def upkeeper() -> Program:
    """Run a round of upkeep that is due."""
    return acting(lambda _, context: run_upkeep(context))


def retainer() -> Program:
    """Drop everything that nobody needs."""
    policy = RetentionPolicy(max_bytes=0)
    return acting(lambda _, context: apply_policy(context, policy))


def registrar(name: str, offset: int) -> Program:
    """Register a reader, and note that it was told so."""

    def work(actor: Actor, context: StreamContext) -> None:
        reader = register_reader(context, name, owner=actor.name, start=Cut("offset", offset))
        actor.note("registered", name, reader.offset)

    return acting(work)


def publisher(name: str, offset: int, *, lapse_s: int) -> Program:
    """Publish a position of a reader that has registered before, and note that it was told so."""

    def run(actor: Actor) -> None:
        log = open_log(actor, hints=False)
        log.reopen()
        reader = register_reader(
            StreamContext.of(log), name, owner=actor.name, start=Cut("offset", 0), lapse_s=lapse_s
        )
        actor.note("ready")
        try:
            reader.publish(offset)
        except (*GIVEN_UP, TruncatedError):
            return
        actor.note("held", name, offset, lapse_s)

    return run


# --- pasts ---------------------------------------------------------------------------------------


def first_files() -> dict[str, bytes]:
    """Return a stream of one version."""
    root = replace(
        first_root(),
        epochs=(Epoch(0, 0, encode_schema(SCHEMA), None),),
        properties={UPKEEP_PROPERTY: UpkeepPolicy(keep_s=0, grace_s=GRACE_S).to_json()},
    )
    return {f"log/{0:020d}": encode_envelope(encode_root(root))}


def empty_scene(actors: dict[str, Program], **options: object) -> Scene:
    """Return a scene over a stream of one version."""
    files = first_files()
    past = Past(chain=((files[f"log/{0:020d}"], NOW_S),))
    given = {"ghost": past, "files": files, "check": check, "observe": observe, "now_s": NOW_S}
    return Scene(actors=actors, **{**given, **options})


def scene(actors: dict[str, Program], *before: Program | int | str, **options: object) -> Scene:
    """Return a scene over a stream with a past: programs that ran one after another, and sleeps.

    A text stands for appends of its letters.
    """
    play = Play(empty_scene({}, dates_commits=options.get("dates_commits", False)))
    for number, step in enumerate(before):
        if isinstance(step, int):
            play.sleep(step)
            continue
        for program in map(appender, step) if isinstance(step, str) else [step]:
            play.perform(f"past{number}", program)
    return empty_scene(
        actors,
        ghost=play.ghost,
        files=play.state.files,
        made=play.state.made,
        now_s=play.state.now_s,
        **options,
    )
