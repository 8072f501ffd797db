"""The engine with one of its rules broken, to see that the simulation notices it.

A mutant replaces a function or a constant wherever the engine has it. It names the actors, the
faults and the hours that show it: in a life of these alone it is noticed soonest.

No life notices these, which other tests do:

- settings do not follow a column that is replaced: `test_settings_follow_columns.py`
- a joining member takes its own record for the newest: `test_shared_readers.py`
- a new follower gets what lies beside the segments: `test_followers_copied.py`
- a reader's record is written without a look for a drop: `test_readers.py`
- a follower has no hint of its newest commit: `test_followers_damaged.py`
- a range of a lost answer counts as done, or is given back again: `test_dead_letters.py`
"""

import inspect
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from random import Random
from textwrap import dedent
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sim_store import REQUESTS, Faults, Store, _fits
from sim_world import HOUR_US, START_US
from simulation import CAST, Life

from segstore_ds.errors import CommitUnknownError, SegstoreError, StorageError
from segstore_ds.format.envelope import encode_envelope
from segstore_ds.log.newest import Base
from segstore_ds.retention.leases import left
from segstore_ds.storage import local_files

MOST_LIVES = 12


class OneKind(Faults):
    """Faults of the given kinds only, each as likely, so that the rate is that of the requests."""

    def draw(self, chance: Random, verb: str) -> str:
        fitting = [kind for kind in self.kinds if kind in REQUESTS and _fits(kind, verb)]
        if not fitting or chance.random() >= self.rate:
            return ""
        kind = chance.choice(fitting)
        self.count(kind)
        return kind


@dataclass(frozen=True, slots=True)
class Noticed:
    """What a mutant's lives were until one of them broke a promise."""

    lives: int
    hours: float
    cpu_s: float
    by: str

    def __str__(self) -> str:
        """Return a row of the table."""
        return f"{self.lives:3} lives {self.hours:7.0f} h {self.cpu_s:6.1f} s  {self.by}"


@dataclass(frozen=True, slots=True)
class Lives:
    """Lives that show a mutant.

    All of the cast take part, with waits that are `pace` times as long. Requests fail at the rate,
    by the kinds of faults given. `seed` is that of the first life, `far` whether an object store
    has the stream, or a disk.
    """

    cast: str
    kinds: str = ""
    rate: float = 0.0
    hours: float = 8.0
    pace: float = 1.0
    seed: int = 300
    far: bool = True

    def begin(self, number: int) -> Life:
        """Return one of them."""
        names = tuple(self.cast.split())
        life = Life(self.seed + number, hours=self.hours, cast=names)
        life.actors = [CAST[name](life, name) for name in names]
        for actor in life.actors:
            actor.pace *= self.pace
        faults = OneKind(self.rate, kinds=tuple(self.kinds.split()))
        life.store = Store(life.world, self.far, faults)
        life.foreign.store = life.store
        life.faulty = self.rate > 0
        return life


@dataclass(frozen=True, slots=True)
class Mutant:
    """A broken rule: where it is, what replaces it there, and the lives that show it.

    The place is ``module:function`` or ``module:Class.method``; the maker gets the original.
    """

    name: str
    rule: tuple[str, Callable[[Any], Any]]
    lives: Lives

    @contextmanager
    def broken(self) -> Iterator[None]:
        """Break the rule meanwhile."""
        target, make = self.rule
        module_name, _, path = target.partition(":")
        owner: Any = import_module(f"segstore_ds.{module_name}")
        *holders, attribute = path.split(".")
        for holder in holders:
            owner = getattr(owner, holder)
        original = vars(owner)[attribute]
        mutated = make(original)
        changed = [(owner, attribute)]
        if not holders:
            changed += [
                (module, name)
                for module in [*sys.modules.values()]
                if getattr(module, "__name__", "").startswith("segstore_ds") and module is not owner
                for name, value in [*vars(module).items()]
                if value is original
            ]
        for where, name in changed:
            setattr(where, name, mutated)
        try:
            yield
        finally:
            for where, name in changed:
                setattr(where, name, original)

    def notice(self, most: int = MOST_LIVES) -> Noticed | None:
        """Live with the rule broken until a promise breaks; None if none does."""
        began, hours = time.process_time(), 0.0
        with self.broken():
            for number in range(most):
                life = self.lives.begin(number)
                try:
                    life.run()
                except (AssertionError, SegstoreError) as error:
                    hours += (life.world.now_us - START_US) / HOUR_US
                    by = str(error).partition("\n")[0][:100]
                    return Noticed(number + 1, hours, time.process_time() - began, by)
                hours += (life.world.now_us - START_US) / HOUR_US
        return None


# --- the log -------------------------------------------------------------------------------------


def _one_try(_original: Any) -> Any:
    def add_or_read(self: Any, number: int, batch: Any) -> bytes | None:
        path = self.path(number)
        data = encode_envelope(self._encode(batch, path)) + self._codec.behind(batch)
        if self.storage.create(path, data):
            self._added = number, data
            return None
        return self._read(path) or b""

    return add_or_read


def _unknown_is_made(original: Any) -> Any:
    def add_or_read(self: Any, number: int, batch: Any) -> bytes | None:
        try:
            return original(self, number, batch)
        except CommitUnknownError:
            return None

    return add_or_read


def _failed_is_made(original: Any) -> Any:
    def add_or_read(self: Any, number: int, batch: Any) -> bytes | None:
        path = self.path(number)
        data = encode_envelope(self._encode(batch, path)) + self._codec.behind(batch)
        try:
            self.storage.create(path, data)
        except StorageError:
            self._added = number, data
            return None
        return original(self, number, batch)

    return add_or_read


def _hint_is_trusted(original: Any) -> Any:
    def find_listed(files: Any, read: Any, start: int, *, damaged: bool) -> Any:
        data = files.read(start) if start else None
        if data is None:
            return original(files, read, start, damaged=damaged)
        return Base.found(read(start, data), data)

    return find_listed


def _no_first_look(original: Any) -> Any:
    def follow(self: Any) -> Any:
        return original(self) if self._base is None else self._base.root

    return follow


def _as_won(_original: Any) -> Any:
    return lambda _self, _root, _began, *, won: won


def _all_made(_original: Any) -> Any:
    def plan_discard(base: Any, lost: Any, winner: Any) -> list[str]:
        del winner
        made = import_module("segstore_ds.log.commit")._made_on
        return sorted({*made(base, lost)})

    return plan_discard


# --- deletion ------------------------------------------------------------------------------------


def _floor_above(original: Any) -> Any:
    def plan_horizon(root: Any, **how: Any) -> Any:
        return replace(original(root, **how), floor=root.version + 1)

    return plan_horizon


def _readers_are_ignored(original: Any) -> Any:
    def plan_retain(root: Any, runs: Any, policy: Any, **how: Any) -> Any:
        held = how.pop("held", ())
        plan = original(root, runs, policy, held=held, **how)
        return replace(plan, offset=root.tail) if held else plan

    return plan_retain


def _one_more(original: Any) -> Any:
    def plan_truncate(root: Any, offset: int, slot: Any) -> Any:
        return original(root, min(offset + 1, root.tail), slot)

    return plan_truncate


def _all_of_the_log(_original: Any) -> Any:
    def purge_dropped(log: Any) -> int:
        return log.files.purge(log.root.version + 1)

    return purge_dropped


# --- writes --------------------------------------------------------------------------------------


def _overwrites_all(original: Any) -> Any:
    def plan_append(root: Any, plan: Any, epoch: int, slot: Any) -> Any:
        if plan.job.overwrite_to is not None:
            plan = replace(plan, job=replace(plan.job, overwrite_to=root.tail))
        return original(root, plan, epoch, slot)

    return plan_append


# --- readers -------------------------------------------------------------------------------------


def _ahead(original: Any) -> Any:
    def publish(self: Any, offset: int, **how: Any) -> None:
        tail = self._context.log.root.tail
        original(self, min(offset + 1, tail) if offset else offset, **how)

    return publish


def _any_token(_original: Any) -> Any:
    def own_record(self: Any, seen: Any, _at: Any) -> Any:
        record = self._current(seen)
        record = left(record, self._given_up(record))
        mine = record.members.get(self.member) or self._lease
        members = {**record.members, self.member: replace(self._lease, token=mine.token)}
        return replace(record, members=members)

    return own_record


def _given_anyhow(original: Any) -> Any:
    def give_out(*given: Any) -> bool:
        original(*given)
        return True

    return give_out


def _all_buckets(original: Any) -> Any:
    def done_by_key(record: Any, share: Any, _buckets: Any, done: int) -> Any:
        return original(record, share, range(len(share.positions)), done)

    return done_by_key


# --- rewrites ------------------------------------------------------------------------------------


def _last_match_stays(original: Any) -> Any:
    def find_matches(job: Any, placed: Any) -> Any:
        found = original(job, placed)
        if found is not None:
            found[found.nonzero()[0][-1]] = False
        return found if found is not None and found.any() else None

    return find_matches


def _all_is_old(_original: Any) -> Any:
    return lambda context, _until_us: context.log.root.tail


def _slots_stay(_original: Any) -> Any:
    def with_nulls(batch: Any, columns: Any, rows: Any) -> Any:
        arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
        for name in columns:
            valid = pc.and_(arrays[name].is_valid(), pc.invert(rows))
            mask = pa.array(valid.to_pylist()).buffers()[1]
            _, *data = arrays[name].take(pa.array(range(len(valid)))).buffers()
            arrays[name] = pa.Array.from_buffers(arrays[name].type, len(valid), [mask, *data])
        return pa.record_batch([*arrays.values()], schema=batch.schema)

    return with_nulls


def _last_segment_stays(original: Any) -> Any:
    def plan_restore(root: Any, old: Any, listed: Any, slot: Any, **how: Any) -> Any:
        return original(root, old, listed[:-1] if len(listed) > 1 else listed, slot, **how)

    return plan_restore


def _stale(original: Any) -> Any:
    def run_set_properties(context: Any, changes: Any, **how: Any) -> Any:
        before = dict(context.log.root.properties)
        context.clock.sleep(1)
        return original(context, {**before, **changes}, **how)

    return run_set_properties


# --- published tables ----------------------------------------------------------------------------


def _last_is_not_added(original: Any) -> Any:
    def plan_changes(span: Any, listed: Any, wanted: Any, **how: Any) -> Any:
        added, removed = original(span, listed, wanted, **how)
        return added[: max(len(added) - 1, 1)], removed

    return plan_changes


def _tail_of_now(_original: Any) -> Any:
    return lambda _context, root, _version: root.tail


# --- a disk --------------------------------------------------------------------------------------


def _without_sync(original: Any) -> Any:
    def write_temporary(self: Any, folder: str, data: bytes, *, sync: bool) -> Any:
        del sync
        return original(self, folder, data, sync=False)

    return write_temporary


def _replacing(_original: Any) -> Any:
    def link(temporary: str, full: str) -> bool:
        local_files.os.replace(temporary, full)
        return True

    return link


# --- followers -----------------------------------------------------------------------------------


def _all_whole(_original: Any) -> Any:
    return lambda _target, segments: frozenset(segments)


def _edited(old: str, new: str) -> Callable[[Any], Any]:
    """Put other words in the place of some in a function's source."""

    def make(original: Any) -> Any:
        source = dedent(inspect.getsource(original))
        assert old in source
        made: dict[str, Any] = {}
        code = compile(
            f"from __future__ import annotations\n{source.replace(old, new)}", "", "exec"
        )
        exec(code, original.__globals__, made)  # noqa: S102 - the source is ours
        return made[original.__name__]

    return make


def _always(value: Any) -> Callable[[Any], Any]:
    """Make a function that gives the same answer whatever it is asked."""

    def make(_original: Any) -> Any:
        return lambda *_given, **_how: value

    return make


def _value(value: Any) -> Callable[[Any], Any]:
    """Put a value in the place of a constant."""
    return lambda _original: value


_ADD = "log.metadata_log:MetadataLog.add_or_read"
_WRITERS = "append-1 append-2 write-1"
_PAIR = "pair-write-1 pair-write-2 pair-read pair-op-1 pair-op-2"
_DESK = "desk-write desk-keep"
_LETTERS = "letters-1 letters-2 letters-3"
_KEYS = "keys-1 keys-2 keys-3"
_LAPSE = "lapse-write-1 lapse-read lapse-expiry lapse-keep"
_SHAPE = "shape-write-1 shape-read shape-smith shape-publish"
_DAYS = 72.0
MUTANTS = (
    Mutant(
        "a failed put counts as never made",
        (_ADD, _one_try),
        Lives(f"{_WRITERS} write-2", "lost denied", 0.05),
    ),
    Mutant(
        "an unknown outcome counts as made",
        (_ADD, _unknown_is_made),
        Lives(f"{_WRITERS} read-1", "late", 0.8, seed=303),
    ),
    Mutant(
        "a put without an answer counts as made",
        (_ADD, _failed_is_made),
        Lives(_WRITERS, "fail", 0.05),
    ),
    Mutant(
        "what was read with a wrong bit is another's",
        ("log.metadata_log:MetadataLog._is_other", _always(True)),
        Lives(_WRITERS, "denied flip", 0.3),
    ),
    Mutant(
        "an open trusts the hint",
        ("log.newest:find_listed", _hint_is_trusted),
        Lives(f"{_WRITERS} read-1 read-2"),
    ),
    Mutant(
        "a refresh does not look",
        ("log.stream_log:StreamLog.refresh", _no_first_look),
        Lives("append-1 append-2 read-1"),
    ),
    Mutant(
        "a late commit is not settled",
        ("log.stream_log:StreamLog._settle_late", _as_won),
        Lives("append-1 append-2 keep keep-2", "pause", 0.003, hours=_DAYS, pace=0.1, seed=405),
    ),
    Mutant(
        "a base is trusted for a month",
        ("log.newest:CONFIRM_S", _value(2.6e6)),
        Lives("append-1 append-2 keep keep-2", "pause", 0.01, hours=_DAYS),
    ),
    Mutant(
        "frames are not compared",
        ("format.inline:frame_is_sound", _always(True)),
        Lives(f"{_WRITERS} read-1 read-2", "flip", 0.2),
    ),
    Mutant(
        "the loser of a race deletes what the winner names",
        ("log.commit:plan_discard", _all_made),
        Lives("append-1 append-2 write-1 write-2 keep keep-2 job", hours=0.1, pace=0.0001),
    ),
    Mutant(
        "a repeated batch is new",
        ("status.writers:check_writer", _always(False)),
        Lives("write-1 write-2", "kill", 0.01),
    ),
    Mutant(
        "nobody may have committed after a failure",
        ("errors:MAYBE_COMMITTED", _value(())),
        Lives("append-1 append-2 follow keep", "fail", 0.1),
    ),
    Mutant(
        "staged objects that expired are committed",
        ("write.staged:check_floor", _always(None)),
        Lives("append-1 job keep keep-2", hours=_DAYS),
    ),
    Mutant(
        "staged objects of running jobs go",
        ("status.deletable:plan_horizon", _floor_above),
        Lives("append-1 job keep keep-2", hours=24),
    ),
    Mutant(
        "an overwrite drops what came since",
        ("write.append:plan_append", _overwrites_all),
        Lives("append-1 append-2 overwrite", "slow", 0.05, hours=24, seed=303),
    ),
    Mutant(
        "objects go without a grace",
        ("status.deletable:Horizon.holder", _always("")),
        Lives("append-1 append-2 read-1 read-2 consume keep keep-2", "slow", 0.02, hours=24),
    ),
    Mutant(
        "retention ignores readers",
        ("retention.retain:plan_retain", _readers_are_ignored),
        Lives("append-1 consume keep", "kill", 0.005, hours=24),
    ),
    Mutant(
        "a truncation goes too far",
        ("retention.truncate:plan_truncate", _one_more),
        Lives("append-1 truncate", hours=48),
    ),
    Mutant(
        "a drop deletes the whole log",
        ("retention.drop:purge_dropped", _all_of_the_log),
        Lives("append-1 tenant-1 tenant-2", "slow pause", 0.02, hours=24),
    ),
    Mutant(
        "a reader is ahead by one",
        ("retention.readers:NamedReader.publish", _ahead),
        Lives("append-1 consume", "kill", 0.01, seed=302),
    ),
    Mutant(
        "a reader publishes nothing",
        ("retention.readers:NamedReader.publish", _always(None)),
        Lives("append-1 consume", "kill", 0.01),
    ),
    Mutant(
        "a member that slept is not fenced",
        ("read.reader_records:_FRESH_S", _value(1e9)),
        Lives("append-1 member-1 member-2 keep", "pause", 0.03, hours=48),
    ),
    Mutant(
        "a lost lease is kept",
        ("retention.members:MemberReader._own_record", _any_token),
        Lives("append-1 append-2 member-1 member-2", "pause", 0.02, hours=24),
    ),
    Mutant(
        "what is not in a member's range is given out",
        ("retention.members:MemberReader.give_out", _given_anyhow),
        Lives(f"{_DESK} {_LETTERS}", hours=24),
    ),
    Mutant(
        "what others hold is done, too",
        ("retention.key_share:done_by_key", _all_buckets),
        Lives(f"{_DESK} {_KEYS}", hours=24),
    ),
    Mutant(
        "dead letters are not written",
        ("stream.dead_letters:DeadLetters.write", _always(None)),
        Lives(f"{_DESK} {_LETTERS}"),
    ),
    Mutant(
        "a dead letter has no number of its own",
        (
            "stream.dead_letters:DeadLetters.write",
            _edited('letter.token or ""', "self._context.clock.new_id()"),
        ),
        Lives(f"{_DESK} {_LETTERS}", "lost kill", 0.02, hours=24),
    ),
    Mutant(
        "deliveries are not counted",
        ("retention.leases:_given", lambda _original: lambda record, *_given: record),
        Lives(f"{_DESK} {_LETTERS}", "kill", 0.01, hours=24),
    ),
    Mutant(
        "a compaction replaces what changed",
        ("compact.commit:_is_listed", _always(True)),
        Lives("append-1 keep keep-2", "slow", 0.1, hours=4, pace=0.02, seed=303),
    ),
    Mutant(
        "a redaction leaves an event",
        ("redact.rewrite:find_matches", _last_match_stays),
        Lives("append-1 read-1 redact"),
    ),
    Mutant(
        "a commit is acknowledged before followers have it",
        ("replication.replicas:Replicas.before_ack", _always(None)),
        Lives("append-1 follow"),
    ),
    Mutant(
        "a follower's segments count as whole",
        ("replication.follower:whole_segments", _all_whole),
        Lives("append-1 append-2 follow", "fail", 0.05, seed=304),
    ),
    Mutant(
        "a promoted follower is removed",
        ("replication.replicas:Replicas.refuse_promoted", _always(None)),
        Lives(_PAIR, "pause", 0.002, hours=24, pace=0.2),
    ),
    Mutant("values expire too early", ("retention.retain:tail_at", _all_is_old), Lives(_LAPSE)),
    Mutant(
        "a rule of expiry begins behind what is due",
        (
            "redact.expire:_clean_start",
            lambda _original: lambda context, _root, _until_us: context.log.root.tail,
        ),
        Lives(_LAPSE),
    ),
    Mutant(
        "nulls keep what was in their slots",
        ("redact.rewrite:with_nulls", _slots_stay),
        Lives(_LAPSE),
    ),
    Mutant(
        "a setting goes back to what a process remembers",
        ("write.create:run_set_properties", _stale),
        Lives("lapse-expiry lapse-key_columns lapse-upkeep", hours=24, pace=0.01),
    ),
    Mutant(
        "objects of kept versions go",
        ("format.root:Root.kept_tags", _value(property(lambda _root: {}))),
        Lives("append-1 keep keep-2 curate overwrite", hours=_DAYS),
    ),
    Mutant(
        "objects of others go",
        ("format.names:is_object", _always(True)),
        Lives("append-1 keep stranger", hours=24),
    ),
    Mutant(
        "upkeep deletes nothing",
        ("retention.deletion:Runner.plan", _always(([], []))),
        Lives("append-1 keep truncate", hours=24),
    ),
    Mutant(
        "a restore leaves a segment out",
        ("retention.truncate:plan_restore", _last_segment_stays),
        Lives(_SHAPE),
    ),
    Mutant(
        "a publication leaves a file out",
        ("publish.listing:plan_changes", _last_is_not_added),
        Lives(_SHAPE),
    ),
    Mutant(
        "newest events pass over what came since",
        ("publish.latest:_tail_at", _tail_of_now),
        Lives("lapse-write-1 lapse-newest"),
    ),
    Mutant(
        "a new file is not synced",
        ("storage.local:LocalStorage._write_temporary", _without_sync),
        Lives("append-1 write-1 read-1", "power", 0.05, far=False),
    ),
    Mutant(
        "a folder is not synced",
        ("storage.local_files:sync_folder", _always(None)),
        Lives("append-1 write-1 read-1", "power", 0.05, far=False),
    ),
    Mutant(
        "a taken name is replaced",
        ("storage.local_files:link", _replacing),
        Lives("append-1 append-2 write-1", "slow", 0.05, far=False),
    ),
)
