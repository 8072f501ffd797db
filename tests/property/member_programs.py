"""Members of a shared reader as actors, and what their ghost checks.

The ghost keeps the true records of the reader: those under the next number. Whatever the order of
steps, an event counts as done only after a member was given it, one member alone is told that it
has done it, leases never overlap, no member is refused that was heard of within its lease, and none
goes by a record that is not in the reader's one history.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from actors import Actor, Program
from commit_programs import open_log
from interleaving import Event, Scene, Violation
from retention_programs import GIVEN_UP, scene

from segstore_ds.errors import LeaseLostError
from segstore_ds.format import names
from segstore_ds.format.envelope import decode_envelope
from segstore_ds.format.reader_record import ReaderRecord, decode_record
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext
from segstore_ds.read import reader_records
from segstore_ds.retention.members import MemberReader, join_reader

LEASE_S = 20
EVENTS = 2
FOLDER = "readers/x/"


@dataclass(frozen=True, slots=True)
class Shared:
    """What has happened: true records with the second they landed, and what members were told."""

    records: tuple[tuple[bytes, int], ...] = ()
    given: frozenset[tuple[str, int]] = frozenset()  # member, offset
    done: frozenset[tuple[str, int]] = frozenset()
    heard: tuple[tuple[str, int], ...] = ()  # member -> when its newest record landed


def keep_few_records(monkeypatch: pytest.MonkeyPatch, *, every: int = 1) -> None:
    """Delete each record as soon as one that is old enough follows it, with every so many."""
    for name, value in (("_PURGE_EVERY", every), ("_PURGE_S", 0), ("_RECORDS_KEPT", 0)):
        monkeypatch.setattr(reader_records, name, value)


def decode(data: bytes) -> ReaderRecord:
    """Return the record that a file holds."""
    return decode_record(decode_envelope(data, where="model"), "model")


def offsets(record: ReaderRecord) -> set[int]:
    """Return the events that are done as of a record."""
    spans = ((span.start, span.end) for span in record.done)
    return {n for start, end in ((0, record.offset), *spans) for n in range(start, end)}


def observe(past: Shared, event: Event) -> Shared:
    """Follow the records and the notes."""
    if event.verb == "note":
        return _noted(past, event)
    path = event.request.path
    number = names.parse_log_name(path.removeprefix(FOLDER))
    if event.verb != "made" or not path.startswith(FOLDER) or number is None:
        return past
    if number != len(past.records):
        return past if number > len(past.records) else _overwritten(past, number, event)
    record = decode(event.request.data)
    before = offsets(decode(past.records[-1][0])) if past.records else set()
    _check_record(past, record, before)
    heard = dict(past.heard)
    heard |= {name: event.now_s for name, each in record.members.items() if each.renewed == number}
    landed = (*past.records, (event.request.data, event.now_s))
    return replace(past, records=landed, heard=tuple(sorted(heard.items())))


def _overwritten(past: Shared, number: int, event: Event) -> Shared:
    # A writer that slept may create a record anew that was deleted: readers pass over it.
    if event.request.verb == "put" and past.records[number][0] != event.request.data:
        raise Violation(f"record {number} was overwritten")
    return past


def _check_record(past: Shared, record: ReaderRecord, before: set[int]) -> None:
    now = offsets(record)
    if not before <= now:
        raise Violation(f"{before - now} is not done any more")
    if unread := now - {offset for _, offset in past.given}:
        raise Violation(f"{unread} is done, and nobody was given it")
    held = sorted((*_leased(record), *((span.start, span.end) for span in record.done)))
    if any(first[1] > second[0] for first, second in pairwise(held)):
        raise Violation(f"ranges overlap: {held}")
    if held and held[0][0] < record.offset:
        raise Violation(f"{held} begins below {record.offset}")


def _leased(record: ReaderRecord) -> Iterator[tuple[int, int]]:
    for lease in record.members.values():
        if lease.start < lease.end:
            yield lease.start, lease.end


def _noted(past: Shared, event: Event) -> Shared:
    kind, *payload = event.request.payload
    if kind == "seen":
        number, record_id = payload
        if [decode(data).id for data, _ in past.records[number : number + 1]] != [record_id]:
            raise Violation(f"{event.actor} goes by record {number} of another history")
        return past
    if kind == "given":
        return replace(past, given=past.given | {(event.actor, payload[0])})
    if kind == "done":
        (offset,) = payload
        if offset not in offsets(decode(past.records[-1][0])):
            raise Violation(f"{event.actor} was told that {offset} is done, and it is not")
        if others := {name for name, each in past.done if each == offset} - {event.actor}:
            raise Violation(f"{event.actor} and {others} have both done {offset}")
        return replace(past, done=past.done | {(event.actor, offset)})
    if kind == "refused" and event.now_s - dict(past.heard)[event.actor] <= LEASE_S:
        raise Violation(f"{event.actor} was refused within its lease")
    return past


def check_files(_files: Mapping[str, bytes], _now_s: int, _past: Shared) -> None:
    """Everything is checked where it happens."""


def joined(actor: Actor, name: str) -> MemberReader:
    """Join as a member."""
    log = open_log(actor, hints=False)
    log.reopen()
    log.follow = lambda: log.root  # nobody drops the stream here
    context = StreamContext.of(log)
    return join_reader(context, "x", owner="", member=name, lease=LEASE_S, start=None)


def commit_next(actor: Actor, own: MemberReader) -> bool:
    """Take and commit an event, or renew; False if there is none."""
    own._looked_s = float("-inf")  # so that it looks again, though no time has passed
    try:
        own.take(EVENTS)
        if own.offset >= min(own.end, EVENTS):
            own.renew(own.offset)
            return False
        offset = own.offset
        actor.note("given", offset)
        own.publish(offset + 1)
    except LeaseLostError:
        actor.note("refused")
    except GIVEN_UP:
        pass
    else:
        actor.note("done", offset)
    return True


def member(rounds: int, *, leaves: bool = False) -> Program:
    """Join, and then take and commit one event a round, as far as there is one."""

    def run(actor: Actor) -> None:
        own = joined(actor, actor.name)
        actor.note("ready")
        for _ in range(rounds):
            commit_next(actor, own)
        if leaves:
            own.leave()

    return run


def renewing(records: int) -> Program:
    """Join, write that many records, and then renew: ready when all is read that a record needs."""

    def run(actor: Actor) -> None:
        own = joined(actor, actor.name)
        for _ in range(records):
            own.renew(own.offset)
        log = own._context.log
        follow = log.follow

        def last_look() -> Root:
            log.follow = follow
            actor.note("ready")
            return follow()

        log.follow = last_look
        own.renew(own.offset)
        actor.note("seen", own._seen.number, own._seen.record.id)

    return run


def shared_scene(actors: dict[str, Program], **options: object) -> Scene:
    """Return a scene of members over a stream of two events."""
    plain = scene(actors, "ab", **options)
    return replace(plain, ghost=Shared(), observe=observe, check=check_files)
