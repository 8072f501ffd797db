"""Every order of what members of a reader do: the real code, and mutants that fail."""

from dataclasses import replace

import pytest
from interleaving import Violation, explore
from member_programs import LEASE_S, keep_few_records, member, shared_scene, sleepers_scene

from segstore_ds.log.metadata_log import MetadataLog
from segstore_ds.read import reader_records
from segstore_ds.retention import members
from segstore_ds.retention.leases import joined, left
from segstore_ds.retention.members import MemberReader

pytestmark = pytest.mark.slow

NAP = {"naps": (LEASE_S + 1,)}
# Minutes of CPU for orders that the others have half of.
LONG = ("two members, two short naps", "two members, two naps")
SLEEPERS = "two members sleep, a third goes on"
SCENES = {
    "two members": lambda: shared_scene({"a": member(2), "b": member(2)}),
    "three members": lambda: shared_scene({name: member(1) for name in "abc"}),
    "two members, a nap": lambda: shared_scene({"a": member(1), "b": member(2)}, **NAP),
    "two members, a nap of the first": lambda: shared_scene(
        {"a": member(2), "b": member(1)}, **NAP
    ),
    LONG[0]: lambda: shared_scene({"a": member(2), "b": member(1)}, naps=(LEASE_S // 2 + 1,) * 2),
    LONG[1]: lambda: shared_scene({"a": member(1), "b": member(1)}, naps=(LEASE_S + 1,) * 2),
    "two members, a nap, a failure": lambda: shared_scene(
        {"a": member(1), "b": member(1)}, faults=1, **NAP
    ),
    "a member leaves, a nap": lambda: shared_scene(
        {"a": member(1, leaves=True), "b": member(1)}, **NAP
    ),
}


@pytest.mark.parametrize(
    "title",
    [pytest.param(title, marks=pytest.mark.sweep) if title in LONG else title for title in SCENES],
)
def test_no_order_loses_an_event_or_gives_it_to_two(title):
    explored = explore(SCENES[title]())
    assert explored.ends > 1


def test_of_two_members_that_slept_none_commits_what_others_have_done(monkeypatch):
    """Both wake after the records that they saw were deleted, and others have their events."""
    keep_few_records(monkeypatch)
    explored = explore(sleepers_scene())
    assert explored.ends > 1


def any_base(monkeypatch):
    """Take a base for the one that was seen if a record of its number exists."""
    keep_few_records(monkeypatch)

    def stands(files, base):
        return files.read(base.number) is not None

    monkeypatch.setattr(reader_records, "_stands", stands)


def no_base(monkeypatch):
    """Commit under a number without a look whether it was deleted."""
    keep_few_records(monkeypatch)
    monkeypatch.setattr(reader_records, "_stands", lambda _files, _base: True)


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
    any_base: (SLEEPERS, "have both done"),
    no_base: (SLEEPERS, "have both done"),
    whole_range: ("two members", "nobody was given it"),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_some_order_breaks_members_that_lack_a_rule(mutant, monkeypatch):
    title, text = MUTANTS[mutant]
    broken = {**SCENES, SLEEPERS: sleepers_scene}[title]()
    mutant(monkeypatch)
    with pytest.raises(Violation, match=text):
        explore(broken)
