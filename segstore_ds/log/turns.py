"""Turns of concurrent writers, so that few races are lost and no writer wins all of them.

A winner knows the newest root and can put again after one round trip; a loser has to read it first
and needs two. Without turns the same writer would win as long as it has something to commit. A
transaction id begins with digits of its writer, so the history rows in the root show all writers
who has committed lately, and all agree on the order: next is the writer that has waited for the
most commits. The others sleep until their turn is near, then poll the version that they wait for.

If a put is slow, a loser puts again at once. On a fast disk every lost attempt takes processor time
from the others, so there a loser backs off.

Turns are no locks: a writer that does not take its turn is skipped after a while, a newcomer puts
at once, and a put out of turn costs only a lost race. If commits are too rare to collide, nobody
waits.

A writer that always wins can't see that others lose, so it pauses after 8 commits in a row, then
after 64, and so on.
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby, takewhile
from operator import attrgetter, itemgetter
from typing import Any

from segstore_ds.format.root import Root
from segstore_ds.log.clock import Clock
from segstore_ds.log.metadata_log import MetadataLog

RUN = 2  # commits of one turn
WRITER_DIGITS, TRANSACTION_DIGITS = 8, 32
REMEMBERED = 64  # commits whose writers are kept
IDLE_TURNS = 2  # a writer that has missed this many turns is not waited for
DENSE = 4.0  # round trips per commit; with more, writers rarely collide
# Polling begins at the first and ends at the second part of the expected wait, plus round trips.
EARLY, LATE, PATIENCE = 0.6, 1.5, 3.0
NEAR = 2  # a writer follows this many commits before its turn one by one
SLOT = 2.0  # most round trips that one commit of a turn takes
SECOND = 1.3  # round trips until a writer's second commit follows its first
# Races that a newcomer has lost; commits after which it is forgotten; round trips to let it pass.
HARD, CALM, PASS = 2, 16, 1.5
MANY, EVERY = 8, 16  # from `MANY` writers on, one of `EVERY` commits lets newcomers pass
LONE_RUN, LONE_RUN_MOST, LONE_GAP = 8, 512, 4.0  # commits in a row; the pause in round trips
LEAST_S, MOST_S = 0.004, 0.25  # bounds of the estimated round trip
FAST_S = 0.012  # the storage is fast if a put and a get take less
READS = 64  # most reads of one wait
LOOK_AHEAD = 24  # most reads of a loser
BACKOFF_S, BACKOFF_MOST_S, BACKOFF_DOUBLED = 0.012, 0.25, 6

_writer_of, _place_of = itemgetter(1), attrgetter("version", "transaction")


@dataclass(frozen=True, slots=True)
class Look:
    """A version to poll for: from when, until when, and the pause between two reads."""

    version: int
    from_s: float
    until_s: float
    pause_s: float


class Turns:
    """Decides when one handle should make its next commit."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rows: deque[tuple[int, str]] = deque(maxlen=REMEMBERED)  # versions and writers
        self._hard_won = -CALM  # the newest version seen whose writer had lost races before
        self._digits = ""
        self._won: int | None = None
        self._won_s = 0.0
        self._run = 0
        self._lone_run = LONE_RUN
        self._put_s = 0.002
        self._pace_s = 0.0  # from one commit of the stream to the next
        self._seen, self._seen_s = -1, 0.0  # the newest version, and about when it was put
        self._losses = 0
        self._others = 0

    @property
    def writers(self) -> int:
        """How many writers take turns, this one included."""
        return 1 + self._others

    def first_unknown(self, version: int) -> int:
        """Return the first version up to `version` that has to be passed to `note`."""
        known = self._rows[-1][0] if self._rows else -1
        return max(known + 1, version + 1 - REMEMBERED)

    def note(self, rows: Iterable[tuple[int, str]]) -> None:
        """Note versions, in order, and their transactions; skip known ones."""
        for version, transaction in rows:
            known = self._rows[-1][0] if self._rows else version - 1
            if version > known + 1:
                self._rows.clear()  # writers of the missing versions would seem to wait
            if version > known:
                self._rows.append((version, transaction[:WRITER_DIGITS]))

    def new_transaction(self) -> str:
        """Return a new transaction id of this writer."""
        fresh = self._clock.new_id()
        self._digits = self._digits or fresh[:WRITER_DIGITS]
        return self._digits + fresh[WRITER_DIGITS:] if len(fresh) == TRANSACTION_DIGITS else fresh

    def next_look(self, root: Root) -> Look | None:
        """Return what to poll for before a first attempt on a root; None to put now."""
        if self._rows and self._rows[-1][0] > root.version:
            self._rows.clear()  # the stream was dropped and created again
            self._won = None
        fresh = root.version - self._rows[-1][0] if self._rows else len(root.history)
        self.note(map(_place_of, root.history[-fresh:] if fresh else ()))
        if self._won is None or self._pace_s > DENSE * self._trip_s:
            return None
        order, run = self._order()
        self._others = len(order)
        if not order:
            self._leave_gap(root)
            return None
        self._lone_run = LONE_RUN
        if self._won == root.version and self._run < RUN:
            return None
        left = round(sum(1 for version in order.values() if version < self._won) * run)
        if not left:
            return self.look_for_second(root) or self._look_for_newcomers(root)
        left += self._is_half_turn(root, run)
        step = max(left - NEAR, 1)  # the last few commits are followed one by one
        wait_s = step * self._slot_s
        until_s = self._seen_s + LATE * wait_s + PATIENCE * self._trip_s
        if until_s <= self._clock.boot_s():
            return None
        from_s = self._seen_s + EARLY * wait_s - self._trip_s if step > 1 else 0.0
        return Look(root.version + step, from_s, until_s, self._slot_s / 4)

    def look_for_second(self, root: Root) -> Look | None:
        """Return what to poll for if the turn probably has a second commit; None to put now."""
        self.note(map(_place_of, root.history))
        until_s = self._seen_s + SECOND * self._trip_s
        if until_s <= self._clock.boot_s() or not self._is_half_turn(root, self._order()[1]):
            return None
        return Look(root.version + 1, 0.0, until_s, self._slot_s / 4)

    def _is_half_turn(self, root: Root, run: float) -> bool:
        return self._won != root.version and self._last_run() < RUN == round(run)

    def found(self, root: Root, *, fresh: bool) -> None:
        """Note the newest root; `fresh` says that it was put a moment ago."""
        now_s = self._clock.boot_s()
        expected_s = self._seen_s + (root.version - self._seen) * self._slot_s
        self._seen, self._seen_s = root.version, now_s if fresh else min(now_s, expected_s)

    def lost(self, took_s: float) -> float | None:
        """Note a lost race; return until when to wait for the next commit, None after a back-off.

        `took_s` is how long the put and the read of the winner took. On a fast disk this call backs
        off. Elsewhere a loser puts at once or, by chance, right after the next commit: with a fixed
        rule it could fall in step with the winners and lose fifty times in a row.
        """
        self._losses += 1
        if took_s < FAST_S:
            doubled = min(self._losses - 1, BACKOFF_DOUBLED)
            self._clock.backoff(doubled, base_s=BACKOFF_S, most_s=BACKOFF_MOST_S)
            return None
        if self._losses == 1:
            return 0.0
        waits = self._clock.random() < 0.5
        return self._clock.boot_s() + PATIENCE * self._trip_s if waits else -1.0

    def won(self, root: Root, put_s: float) -> None:
        """Note that this handle's commit made `root`, and how long its put took."""
        now_s = self._clock.boot_s()
        if self._won is not None and self._won < root.version:
            pace_s = (now_s - self._won_s) / (root.version - self._won)
            self._pace_s = 0.7 * self._pace_s + 0.3 * pace_s if self._pace_s else pace_s
        self._run = self._run + 1 if self._won == root.version - 1 else 1
        self._won, self._won_s, self._put_s, self._losses = root.version, now_s, put_s, 0
        self._seen, self._seen_s = root.version, now_s
        self._digits = root.transaction[:WRITER_DIGITS]

    @property
    def _trip_s(self) -> float:
        return min(max(self._put_s, LEAST_S), MOST_S)

    @property
    def _slot_s(self) -> float:
        """Return the time that one commit of a turn takes; bounded, so a stall does not count."""
        return min(self._pace_s, SLOT * self._trip_s)

    def _order(self) -> tuple[dict[str, int], float]:
        """Return the other writers' last versions, and about how many commits a turn has.

        A writer that has committed only once may be done, so it is left out.
        """
        writers = [*map(_writer_of, self._rows)]
        if {*writers} <= {self._digits}:
            return {}, float(RUN)
        again = {writer for writer, commits in Counter(writers).items() if commits > 1}
        run = min(len(writers) / len([*groupby(writers)]), float(RUN))
        oldest = self._rows[-1][0] - max(6, IDLE_TURNS * len(again) * run)
        again.discard(self._digits)
        if not again:
            return {}, run
        last = {writer: version for version, writer in self._rows if version > oldest}
        return {writer: last[writer] for writer in again & last.keys()}, run

    def _last_run(self) -> int:
        last = self._rows[-1][1]
        return sum(1 for _ in takewhile(lambda row: row[1] == last, reversed(self._rows)))

    def _look_for_newcomers(self, root: Root) -> Look | None:
        """Return what to poll for so that newcomers that lose many races win one; None to put now.

        One that has never won is in no history: among many writers every `EVERY`th commit waits.
        """
        hard = (row.version for row in reversed(root.history) if row.races_lost >= HARD)
        self._hard_won = max(self._hard_won, next(hard, -CALM))
        until_s = self._seen_s + PASS * self._trip_s
        calm = root.version - self._hard_won >= CALM
        closed = self._others < MANY or root.version % EVERY > 1
        if (calm and closed) or until_s <= self._clock.boot_s():
            return None
        return Look(root.version + 1, 0.0, until_s, self._slot_s / 4)

    def _leave_gap(self, root: Root) -> None:
        """Pause after many commits in a row, so that a writer that has never won can win."""
        if self._run < self._lone_run or self._won != root.version:
            return
        self._run, self._lone_run = 0, min(8 * self._lone_run, LONE_RUN_MOST)
        gap_s = LONE_GAP * self._trip_s * (1 + 0.3 * self._clock.random())
        left_s = self._won_s + gap_s - self._clock.boot_s()
        if left_s > 0:
            self._clock.sleep(left_s)


def await_version(files: MetadataLog[Any], clock: Clock, look: Look) -> tuple[bytes | None, bool]:
    """Poll for a version; return its file or None, and whether it was put a moment ago."""
    clock.sleep(max(look.from_s - clock.boot_s(), 0.0))
    for reads in range(READS):
        asked_s = clock.boot_s()
        data = files.read(look.version)
        now_s = clock.boot_s()
        if data is not None or now_s >= look.until_s:
            return data, reads > 0
        clock.sleep(max(asked_s + look.pause_s - now_s, 0.0))
    return None, True


def read_ahead(
    files: MetadataLog[Any], clock: Clock, version: int, data: bytes | None, until_s: float
) -> tuple[int, bytes | None]:
    """Return the newest version after one that was read, or one near it.

    It waits until `until_s` for one that is just being put. If that is negative, it does not make
    sure that the version is the newest.
    """
    # Others commit meanwhile: reading one by one would hardly catch up.
    stride, hits, missed = 2, 0, False
    for _ in range(LOOK_AHEAD):
        following = files.read(version + stride)
        if following is not None:
            version, data = version + stride, following
            if missed or (stride == 1 and until_s < 0):
                break
            hits += 1
            stride *= 2 if stride > 1 < hits else 1
        elif stride > 1:
            stride, hits = stride // 2, 0
        elif clock.boot_s() >= until_s:
            break
        else:
            missed = True
    return version, data
