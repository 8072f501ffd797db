"""Appending and following in an event loop: no thread waits, and cancelling loses nothing."""

import asyncio
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from test_shared_commits import SCHEMA, Gate

import segstore_ds as segstore
from segstore_ds.errors import CommitUnknownError, SchemaMismatchError
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import open as open_on

PAGE = Path(segstore.__file__).parent / "docs/python.md"
TASKS = 100


@pytest.fixture
def gate(tmp_path):
    url = f"file://{tmp_path}/s"
    segstore.create(url, SCHEMA)
    return Gate(open_storage(url))


@pytest.fixture
def stream(gate):
    return open_on(gate)


def run(work):
    """Run a coroutine in a loop whose pool has a single thread."""

    async def alone():
        with ThreadPoolExecutor(1) as pool:
            asyncio.get_running_loop().set_default_executor(pool)
            return await asyncio.wait_for(work, 120)

    return asyncio.run(alone())


async def log(appender, n):
    return n, await appender.wait(await appender.append({"n": n}))


async def reached(gate):
    """Wait until a commit is in flight; the pool's only thread may be in it."""
    while not gate.reached.acquire(blocking=False):  # noqa: ASYNC110 - of threads
        await asyncio.sleep(0.001)


def test_tasks_that_wait_hold_no_thread_and_share_commits(stream, gate):
    async def work():
        async with stream.appender(flush_seconds=None) as appender:
            with gate.held():
                tasks = [asyncio.ensure_future(log(appender, n)) for n in range(TASKS)]
                await reached(gate)
                while appender.next_place < TASKS:  # noqa: ASYNC110 - of threads
                    await asyncio.sleep(0.001)
            return await asyncio.gather(*tasks)

    before = stream.refresh().version
    pairs = run(work())
    numbers = stream.read(0).read_all()["n"].to_pylist()
    assert sorted(offset for _, offset in pairs) == [*range(TASKS)]
    assert all(numbers[offset] == n for n, offset in pairs)
    assert stream.refresh().version - before <= 2  # the one that was held, and the rest in one


def test_a_cancelled_wait_takes_back_no_event(stream, gate):
    async def work():
        async with stream.appender() as appender:
            with gate.held():
                task = asyncio.ensure_future(log(appender, 7))
                await reached(gate)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert await log(appender, 8) == (8, 1)

    run(work())
    assert stream.read(0).read_all()["n"].to_pylist() == [7, 8]


@pytest.mark.parametrize("answers", [True, False])
def test_a_cancelled_append_goes_on_and_says_so(stream, gate, answers, caplog):
    async def work():
        with gate.held():
            task = asyncio.ensure_future(stream.aappend({"n": 7}, writer_id="w", batch_id=1))
            await reached(gate)
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            assert "safe to repeat" in caught.value.__notes__[0]
            gate.silent = not answers
        while not answers and not caplog.records:  # noqa: ASYNC110 - a thread logs
            await asyncio.sleep(0.001)
        gate.silent = False
        return await stream.aappend({"n": 7}, writer_id="w", batch_id=1)

    with caplog.at_level(logging.WARNING, "segstore_ds.write.awaited"):
        assert run(work()).repeated == answers
    assert stream.read(0).read_all()["n"].to_pylist() == [7]
    assert [record.exc_info[0] for record in caplog.records] == [CommitUnknownError] * (not answers)


def test_a_block_that_is_cancelled_flushes_and_one_that_fails_does_not(stream):
    async def work(error):
        async with stream.appender(flush_seconds=None) as appender:
            await appender.append({"n": 1})
            with pytest.raises(SchemaMismatchError, match="'m'"):
                await appender.append({"m": 1})
            if error is not None:
                raise error
            assert (appender.next_place, appender.flushed_place) == (1, 0)
            assert (await appender.flush()).rows == 1

    run(work(None))
    with pytest.raises(asyncio.CancelledError):
        run(work(asyncio.CancelledError()))
    assert stream.refresh().tail == 2
    with pytest.raises(ZeroDivisionError):
        run(work(ZeroDivisionError()))
    assert stream.refresh().tail == 2


def test_many_idle_loops_share_a_thread(stream):
    async def first(number):
        async with stream.afollow(f"reader-{number}", start="head", poll_s=0.01) as events:
            batch = await anext(events)
            assert (events.offset, events.reader.name) == (0, f"reader-{number}")
            return batch["n"].to_pylist()

    async def work():
        loops = [asyncio.ensure_future(first(number)) for number in range(20)]
        await asyncio.sleep(0.2)
        await stream.aappend({"n": 5})
        return await asyncio.gather(*loops)

    assert run(work()) == [[5]] * 20


def test_a_member_gives_its_range_back(stream):
    stream.append(pa.table({"n": [1, 2, 3]}))

    async def work():
        how = {"start": "head", "lease": 600, "max_rows": 1, "timeout": 0}
        async with stream.afollow("billing", member="w1", **how) as events:
            assert (await anext(events))["n"].to_pylist() == [1]
            await events.renew()
        async with stream.afollow("billing", member="w2", **how) as events:
            return [batch["n"].to_pylist() async for batch in events]

    assert run(work()) == [[1], [2], [3]]


@pytest.mark.slow
def test_the_web_service_of_the_page_loses_no_answered_event(tmp_path):
    (code,) = re.findall(r"As `app.py`:\n\n```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    url = str(tmp_path / "clicks")
    stream = segstore.create(url, SCHEMA)
    (tmp_path / "app.py").write_text(code.replace("/data/clicks", url))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "app:app", "--workers=2", f"--port={port}"]
    paths = os.pathsep.join([str(Path(segstore.__file__).parents[1]), *sys.path])
    server = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths})

    def post(n):
        body = f'{{"n": {n}}}'.encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/events", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - to itself
                return n, int(re.findall(rb"\d+", answer.read())[0])
        except (urllib.error.URLError, ConnectionError):
            return n, None

    try:
        until_s = time.monotonic() + 60
        while post(-1)[1] is None:
            assert time.monotonic() < until_s
            time.sleep(0.1)
        with ThreadPoolExecutor(16) as pool:
            answers = [pool.submit(post, n) for n in range(400)]
            while sum(each.done() for each in answers) < 100:
                time.sleep(0.01)
            server.send_signal(signal.SIGTERM)
            answered = {n: offset for n, offset in (each.result() for each in answers) if offset}
        assert server.wait(60) in (0, -signal.SIGTERM)
    finally:
        server.kill()
        server.wait()
    numbers = stream.read(0).read_all()["n"].to_pylist()
    assert len(answered) >= 90
    assert all(numbers[offset] == n for n, offset in answered.items())
    assert len(numbers) - len({*numbers}) == numbers.count(-1) - 1


def test_an_unknown_outcome_reaches_every_task(stream, gate):
    async def work():
        async with stream.appender(flush_seconds=None) as appender:
            places = [await appender.append({"n": n}) for n in range(5)]
            with gate.held():
                waits = [asyncio.ensure_future(appender.wait(place)) for place in places]
                await reached(gate)
                gate.silent = True
            found = await asyncio.gather(*waits, return_exceptions=True)
            gate.silent = False
            await appender.resume()
            return found

    assert [type(each) for each in run(work())] == [CommitUnknownError] * 5
    assert stream.read(0).read_all()["n"].to_pylist() == [*range(5)]
