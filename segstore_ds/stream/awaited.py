"""Following a stream in an event loop: the polls are those of `Follow`, in threads of its pool."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Self

import pyarrow as pa

from segstore_ds.errors import InvalidInputError
from segstore_ds.options.quantities import Duration
from segstore_ds.retention.readers import NamedReader
from segstore_ds.stream.follow import Follow
from segstore_ds.write.awaited import finish_in_thread


class AsyncFollow(AsyncIterator[pa.RecordBatch]):
    """The batches of a stream for ``async for``, made by `Stream.afollow`; as `Follow` otherwise.

    A named reader registers when the loop asks for its first batch. A cancelled wait loses nothing:
    the next one returns that batch. `close`, or an ``async with``, gives a member's range back.
    """

    def __init__(self, begin: Callable[[], Follow]) -> None:
        self._follow: Follow | None = None
        self._begin = begin
        self._polled: asyncio.Task[pa.RecordBatch | float] | None = None

    @property
    def offset(self) -> int | None:
        """The offset of the first event that is not done; None before the first batch."""
        return None if self._follow is None else self._follow.offset

    @property
    def reader(self) -> NamedReader | None:
        """The named reader that publishes; None without one, or before the first batch."""
        return None if self._follow is None else self._follow.reader

    def __aiter__(self) -> Self:
        """Return this object."""
        return self

    async def __anext__(self) -> pa.RecordBatch:
        """Return the next batch, waiting for it; StopAsyncIteration at a seal or the timeout."""
        while True:
            self._polled = self._polled or asyncio.ensure_future(asyncio.to_thread(self._poll))
            await asyncio.wait([self._polled])  # a cancelled wait leaves it pending
            polled, self._polled = self._polled, None
            found = polled.result()
            if not isinstance(found, float):
                return found
            if found < 0:
                raise StopAsyncIteration
            await asyncio.sleep(found)

    async def renew(self) -> None:
        """Keep a member's lease while the batch that was returned last takes longer than that."""
        if self._follow is not None:
            await finish_in_thread(self._follow.renew, cancelled="the lease may be renewed")

    async def give_back(self, *, delay: Duration = 0) -> None:
        """Give back the batch that was returned last, as `Follow.give_back`."""
        await self._call(lambda follow: follow.give_back(delay=delay), "given back")

    async def reject(self, reason: str, *, rows: Sequence[int] | None = None) -> None:
        """Send the batch that was returned last to the dead letters, as `Follow.reject`."""
        await self._call(lambda follow: follow.reject(reason, rows=rows), "rejected")

    async def _call(self, call: Callable[[Follow], None], done: str) -> None:
        if self._follow is None:
            raise InvalidInputError(
                "there is no batch to give back", remedy="ask for a batch first"
            )
        await finish_in_thread(partial(call, self._follow), cancelled=f"the batch may be {done}")

    async def close(self) -> None:
        """Leave the reader, if this is a member: others get at once what is not done yet."""
        if self._polled is not None:
            await asyncio.wait([self._polled])
        if self._follow is not None:
            await finish_in_thread(self._follow.close, cancelled="the member leaves all the same")

    async def __aenter__(self) -> Self:
        """Return this object."""
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _poll(self) -> pa.RecordBatch | float:
        self._follow = self._follow or self._begin()
        return self._follow.poll()
