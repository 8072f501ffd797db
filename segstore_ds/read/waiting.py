"""Few events wait for more, so that a batch is worth its cost, but never longer than a delay."""

from segstore_ds.errors import NotFoundError
from segstore_ds.format.root import Root
from segstore_ds.log.context import StreamContext


class Waiting:
    """Decides whether the next events of one reader wait for more.

    The delay counts from the commit of the first of them, which the history knows: a reader that
    starts again waits only for what is left of it. From when they were seen here, the machine's
    clock may jump.
    """

    def __init__(self, context: StreamContext, least_rows: int | None, delay_s: float) -> None:
        self._context, self._least_rows, self._delay_s = context, least_rows, delay_s
        self._first = -1
        self._since_s = 0.0

    def holds(self, root: Root, start: int, end: int) -> bool:
        """Tell whether the events ``[start, end)`` wait: they are too few, and more may come."""
        if self._least_rows is None or end - start >= self._least_rows:
            return False
        if root.sealed or not root.head <= start < end:
            return False
        now_s = self._context.clock.boot_s()
        if start != self._first:
            self._first, self._since_s = start, now_s - self._age_s(root, start)
        return now_s - self._since_s < self._delay_s

    def _age_s(self, root: Root, offset: int) -> float:
        try:
            times = self._context.log.history.commit_times(root, offset, offset + 1)[1]
        except NotFoundError:
            return 0.0
        return max(self._context.clock.wall_us() - int(times[0]), 0) / 1e6
