"""Every order of what members of a reader do: the real code, and mutants that fail."""

from dataclasses import replace

import pytest
from interleaving import Violation, explore
from member_programs import LEASE_S, keep_few_records, member, renewing, shared_scene

from segstore_ds.log.metadata_log import MetadataLog
from segstore_ds.read import reader_records
from segstore_ds.retention import members
from segstore_ds.retention.leases import joined, left
from segstore_ds.retention.members import MemberReader

pytestmark = pytest.mark.slow

NAP = {"naps": (LEASE_S + 1,)}
SCENES = {
    "two members": lambda: shared_scene({"a": member(2), "b": member(2)}),
    "three members": lambda: shared_scene({name: member(1) for name in "abc"}),
    "two members, a nap": lambda: shared_scene({"a": member(1), "b": member(2)}, **NAP),
    "two members, a nap of the first": lambda: shared_scene(
        {"a": member(2), "b": member(1)}, **NAP
    ),
    "two members, a nap, a failure": lambda: shared_scene(
        {"a": member(1), "b": member(1)}, faults=1, **NAP
    ),
    "a member leaves, a nap": lambda: shared_scene(
        {"a": member(1, leaves=True), "b": member(1)}, **NAP
    ),
}
ASLEEP = "three members about to write, a nap, a purge"
SCENES[ASLEEP] = lambda: shared_scene({"a": renewing(0), "b": renewing(0), "c": renewing(1)}, **NAP)
# A purge by c and records of two that slept need two; with three there are four times the states.
SWITCHES = {ASLEEP: 2}


def purge_with_the_next(monkeypatch):
    """Delete records with number 4: the prelude of `ASLEEP` ends with number 3."""
    keep_few_records(monkeypatch, every=5)


@pytest.mark.parametrize("title", SCENES)
def test_no_order_loses_an_event_or_gives_it_to_two(title, monkeypatch):
    purge_with_the_next(monkeypatch)
    explored = explore(SCENES[title](), most_switches=SWITCHES.get(title))
    assert explored.ends > 1


def base_of_any_history(monkeypatch):
    """Take whatever has the number of the base for the base: another that slept may have put it."""

    def stands(files, base):
        return files.get(base.number) is not None

    monkeypatch.setattr(reader_records, "_stands", stands)


def no_look_after_a_nap(monkeypatch):
    """Count a record that was put late, though its number may have been deleted."""
    monkeypatch.setattr(reader_records, "_FRESH_S", float("inf"))


def no_fence(monkeypatch):
    """Commit although the lease was given to another."""

    def own_record(self, seen, _at):
        record = self._current(seen)
        record = left(record, self._given_up(record))
        mine = record.members.get(self.member)
        return record if mine else joined(record, self.member, self._lease)

    monkeypatch.setattr(MemberReader, "_own_record", own_record)


def no_exclusive_create(monkeypatch):
    """Put a record whether or not its number is free."""

    def put(self, number, batch):
        self.storage.put(self.path(number), self._codec.encode_file(batch))

    monkeypatch.setattr(MetadataLog, "add_or_read", put)


def no_wait(monkeypatch):
    """Take what others have leased without waiting."""

    def given_up(self, record):
        return frozenset(record.members) - {self.member}

    monkeypatch.setattr(MemberReader, "_given_up", given_up)


def short_wait(monkeypatch):
    """Count the time from when a lease was seen first, renewed or not."""

    def given_up(self, record):
        now_s = self._context.clock.boot_s()
        for name in record.members:
            self._watched.setdefault(name, now_s)
        late = (name for name in record.members if now_s - self._watched[name] > LEASE_S)
        return frozenset(late) - {self.member}

    monkeypatch.setattr(MemberReader, "_given_up", given_up)


def whole_range(monkeypatch):
    """Commit all of a range with its first event."""
    real = members.advanced

    def advanced(record, name, at, number):
        lease = record.members[name]
        return real(record, name, replace(at, done=max(at.done, min(lease.end, at.tail))), number)

    monkeypatch.setattr(members, "advanced", advanced)


MUTANTS = {
    no_fence: ("two members, a nap", "begins below"),
    no_exclusive_create: ("two members", "overwritten"),
    no_wait: ("two members", "refused within its lease"),
    short_wait: ("two members, a nap of the first", "refused within its lease"),
    whole_range: ("two members", "nobody was given it"),
    base_of_any_history: (ASLEEP, "of another history"),
    no_look_after_a_nap: (ASLEEP, "of another history"),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_some_order_breaks_members_that_lack_a_rule(mutant, monkeypatch):
    title, text = MUTANTS[mutant]
    purge_with_the_next(monkeypatch)
    broken = SCENES[title]()
    mutant(monkeypatch)
    with pytest.raises(Violation, match=text):
        explore(broken, most_switches=SWITCHES.get(title))
