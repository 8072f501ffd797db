"""Turns of writers that commit at once, so that none of them wins for ever.

Who won knows the newest root and can put again after one round trip; who lost has to read it first
and needs two. Without a rule the same writer wins as long as it has something to commit. So a
writer that commits back to back leaves a gap after each commit while races are lost, and after many
commits otherwise, because a writer that always wins can't see that others lose.

Who lost puts again at once where a put takes longer than the work around it. On a fast disk the
writers compete for processors instead, and every lost attempt takes time from the others, so there
a loser backs off and looks for the newest root afterwards.
"""

from segstore_ds.format.root import Root
from segstore_ds.log.clock import Clock

RUN = 1  # commits in a row of one writer while others lose races
LONE_RUN = 128
REMEMBERED = 64  # versions after which a lost race is forgotten
GAP, LONE_GAP = 2.2, 4.0  # round trips after a run: a loser's read and its put arrive in between
FAST_S = 0.012  # a put and a get that take less are of a fast disk
BACKOFF_S, BACKOFF_MOST_S, BACKOFF_DOUBLED = 0.012, 0.25, 6


class Turns:
    """Waits for the turns of one handle's commits."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._put_s = 0.002  # what one put took
        self._won: int | None = None
        self._won_s = 0.0
        self._run = 0
        self._contended = -REMEMBERED
        self._losses = 0

    def wait_fresh(self, root: Root) -> None:
        """Wait before the first attempt of a commit on a root that may be this handle's own."""
        recent = root.history[-REMEMBERED:]
        lost = [row.version for row in recent if row.races_lost]
        self._contended = max([self._contended, *lost[-1:]])
        contended = root.version - self._contended < REMEMBERED
        if root.version != self._won or self._run < (RUN if contended else LONE_RUN):
            return
        self._run = 0
        gap_s = (GAP if contended else LONE_GAP) * self._put_s * (1 + 0.3 * self._clock.random())
        left_s = self._won_s + gap_s - self._clock.boot_s()
        if left_s > 0:
            self._clock.sleep(left_s)

    def lost(self, version: int, took_s: float) -> bool:
        """Note that another commit took `version` first; tell whether this call has backed off.

        `took_s` is how long the put and the read of the winner took.
        """
        self._contended = version
        self._losses += 1
        if took_s >= FAST_S:
            return False
        doubled = min(self._losses - 1, BACKOFF_DOUBLED)
        self._clock.backoff(doubled, base_s=BACKOFF_S, most_s=BACKOFF_MOST_S)
        return True

    def won(self, version: int, put_s: float) -> None:
        """Note that this handle's commit took `version`, and how long its put took."""
        self._run = self._run + 1 if self._won == version - 1 else 1
        self._won, self._won_s, self._put_s = version, self._clock.boot_s(), put_s
        self._losses = 0
