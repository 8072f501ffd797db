"""Members of a named reader, polled by a test, and as processes that say what they got."""

import os
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa
from stream_kit import numbers

from segstore_ds.errors import LeaseLostError
from segstore_ds.stream.opening import open as open_on

LEASE_S = 30
Options = dict[str, Any] | None


def poll(follow):
    """Return the numbers of the batch that is there, or None; unlike a loop it does not wait."""
    batch = follow._take()
    return batch and batch["n"].to_pylist()


def drain(*follows, step_s=2):
    """Poll each every two seconds until none gets anything; return what each got."""
    found = [[] for _ in follows]
    while follows[0]._context.clock.sleep(step_s) or any(batches := [*map(poll, follows)]):
        for got, batch in zip(found, batches, strict=True):
            got.extend(batch or ())
    return found


def record(stream):
    """Return the newest record of the only reader."""
    (seen,) = stream.readers
    return seen.record


def work(  # noqa: PLR0917 - a process gets them in order
    reply: Connection,
    url: str,
    member: str,
    lease: str,
    options: Options = None,
    key: list[str] | None = None,
) -> None:
    """Follow as a member to the end, and send each batch's numbers before asking for the next."""
    stream = open_on(url, storage_options=options)
    poll_s = 0.02 if options is None else 0.2  # each look at a server costs it and the client
    how = {"member": member, "lease": lease, "key": key, "columns": ["n"], "poll_s": poll_s}
    with stream.follow("billing", **how) as follow:
        while True:
            try:
                for batch in follow:
                    reply.send(batch["n"].to_pylist())
            except LeaseLostError as error:
                reply.send(str(error))
            else:
                return


def work_and_reject(  # noqa: PLR0917 - a process gets them in order
    reply: Connection,
    url: str,
    member: str,
    lease: str,
    options: Options = None,
    key: list[str] | None = None,
) -> None:
    """As `work`, but reject each tenth number, and die of those that end in 55."""
    stream = open_on(url, storage_options=options)
    poll_s = 0.02 if options is None else 0.2
    how = {"dead_letters": f"{url}-dead", "max_deliveries": 2, "max_rows": 10, "poll_s": poll_s}
    how |= {"key": key}
    with stream.follow("billing", member=member, lease=lease, columns=["n"], **how) as follow:
        for batch in follow:
            found = batch["n"].to_pylist()
            if any(n % 100 == 55 for n in found):
                os._exit(1)
            reply.send([n for n in found if n % 10])  # before the others are done by the rejection
            bad = [row for row, n in enumerate(found) if n % 10 == 0]
            if bad:
                follow.reject("a tenth", rows=bad)


def keyed(start: int, end: int) -> pa.Table:
    """Return events of seven keys."""
    table = numbers(start, end)
    return table.set_column(1, "s", [[f"k{n % 7}" for n in range(start, end)]])


def in_order(batches: list[list[int]]) -> bool:
    """Tell whether a member got the events of each key of `keyed` in order, and none twice."""
    got = [n for batch in batches for n in batch]
    return all(
        own == sorted({*own}) for key in range(7) if (own := [n for n in got if n % 7 == key])
    )


def work_when_told(reply: Connection, url: str, member: str, lease: str) -> None:
    """As `work`, but ask for each batch after the first only when told to."""
    follow = open_on(url).follow("billing", member=member, lease=lease, columns=["n"], poll_s=0.02)
    while True:
        try:
            batch = next(follow)
        except LeaseLostError as error:
            reply.send(str(error))
        except StopIteration:
            return
        else:
            reply.send(batch["n"].to_pylist())
        reply.recv()
