"""The appender for asyncio: calls run in the event loop's threads, but `wait` needs no thread.

A call that has begun is never interrupted: if its caller is cancelled, it continues to its end. An
error is then logged, since nobody awaits the call any more.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from segstore_ds.status.writers import Commit
from segstore_ds.write.inputs import Data

T = TypeVar("T")

_LOG = logging.getLogger(__name__)


async def finish_in_thread(call: Callable[[], T], *, cancelled: str) -> T:
    """Run a call in a thread; after a cancellation it continues, and the error gets that note."""
    running = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError as error:
        running.add_done_callback(_log_failure)
        error.add_note(cancelled)
        raise


def _log_failure(running: "asyncio.Task[Any]") -> None:
    if not running.cancelled() and (error := running.exception()) is not None:
        _LOG.warning("a call failed after its caller was cancelled", exc_info=error)


class AsyncAppender:
    """An appender for ``async with stream.appender()``; its methods are those of `LiveAppender`.

    Tasks of one event loop may share it. Those that `wait` hold no thread and share commits. One
    that is cancelled takes back no event: what was appended is committed with the next flush.

    Examples:
        >>> import asyncio
        >>> async def log(event):
        ...     async with stream.appender() as appender:
        ...         return await appender.wait(await appender.append(event))
        >>> asyncio.run(log({"user": "ada", "n": 4}))
        3
    """

    def __init__(self, appender: Any) -> None:
        self._appender = appender  # a `LiveAppender`, which imports this module where it is used

    @property
    def next_place(self) -> int:
        """The place that the next event gets."""
        return int(self._appender.next_place)

    @property
    def flushed_place(self) -> int:
        """Every event below this place is committed."""
        return int(self._appender.flushed_place)

    async def append(self, data: Data) -> int:
        """Take one event or many, and return the place of the first; as `LiveAppender.append`."""
        note = "the events may have been taken: next_place tells; the next flush commits them then"
        append: Callable[[], int] = partial(self._appender.append, data)
        return await finish_in_thread(append, cancelled=note)

    async def wait(self, place: int) -> int:
        """Wait until an event is durable, and return its offset; as `LiveAppender.wait`."""
        loop = asyncio.get_running_loop()
        while True:
            ended = asyncio.Event()
            wake = partial(loop.call_soon_threadsafe, ended.set)
            offset: int | None = await asyncio.to_thread(self._appender.watch, place, wake)
            if offset is not None:
                return offset
            await ended.wait()

    async def flush(self) -> Commit | None:
        """Commit all events taken so far; as `LiveAppender.flush`."""
        flush: Callable[[], Commit | None] = self._appender.flush
        return await finish_in_thread(flush, cancelled="the flush goes on")

    async def resume(self) -> int:
        """Go on after a failure; as `LiveAppender.resume`."""
        resume: Callable[[], int] = self._appender.resume
        return await finish_in_thread(resume, cancelled="it goes on")
