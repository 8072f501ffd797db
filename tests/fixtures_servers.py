"""Real object store servers as fixtures, one of each for the whole session.

A test that needs a server is skipped where the tool that fetches it is missing; the reason names
the command. The first run on a machine fetches: give the test `FETCHES` as a mark.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fault_proxy import FaultProxy, fault_proxy
from object_servers import (
    AZURITE,
    FAKE_GCS,
    MINIO,
    MOST_FETCH_S,
    VERSITYGW,
    Program,
    Server,
    ServerUnavailableError,
    fetch,
    running,
)

FETCHES = [pytest.mark.slow, pytest.mark.timeout(2 * MOST_FETCH_S)]
# aiohttp says so of every part of a staged object.
LARGE_BODIES = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")

# After which the clients of `impatient_clients` give up on an answer, by scheme. gcsfs does not
# repeat what timed out: so it waits longer than any sound answer takes on a busy machine.
IMPATIENCE_S = {"s3": 0.3, "az": 0.3, "gcs": 1.5}


def hasty_options(scheme: str, *, patient: bool) -> dict[str, Any]:
    """Return a client's options for `hasty_clients`, or for `impatient_clients` unless patient."""
    if scheme == "s3":
        config = {"retries": {"max_attempts": 0}}
        hurry = {} if patient else {"read_timeout": IMPATIENCE_S["s3"]}
        return {"config_kwargs": {**config, **hurry}}
    # adlfs has no option for it.
    return {"requests_timeout": IMPATIENCE_S["gcs"]} if scheme == "gcs" and not patient else {}


def fetch_or_skip(program: Program) -> None:
    """Fetch a server, or skip the test with the command that would."""
    try:
        fetch(program)
    except ServerUnavailableError as missing:
        pytest.skip(str(missing))


def _run(program: Program, factory: pytest.TempPathFactory) -> Iterator[Server]:
    fetch_or_skip(program)
    with running(program, factory.mktemp(program.name)) as server:
        yield server


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """S3's protocol."""
    yield from _run(MINIO, tmp_path_factory)


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Azure Blob Storage's protocol."""
    yield from _run(AZURITE, tmp_path_factory)


@pytest.fixture(scope="session")
def fake_gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Google Cloud Storage's protocol."""
    yield from _run(FAKE_GCS, tmp_path_factory)


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """S3's protocol, but conditions of a put are accepted and ignored."""
    yield from _run(VERSITYGW, tmp_path_factory)


# Those that honour conditional puts.
NAMES = ("minio", "azurite", "fake_gcs")


@pytest.fixture(params=NAMES)
def server(request: pytest.FixtureRequest) -> Server:
    """Each of them, by turns."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    """Return a proxy before a server."""
    with fault_proxy(server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def hasty_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients repeat requests at most once or without waits."""
    from asyncio import sleep

    import gcsfs.retry
    from azure.core.pipeline.transport import AsyncHttpTransport
    from s3fs.core import S3FileSystem

    monkeypatch.setattr(S3FileSystem, "retries", 2)
    monkeypatch.setattr(gcsfs.retry, "asyncio", SimpleNamespace(sleep=lambda _: sleep(0)))
    monkeypatch.setattr(AsyncHttpTransport, "sleep", lambda *_: sleep(0))


@pytest.fixture
def impatient_clients(hasty_clients: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    """Let them give up on answers soon, too."""
    from azure.storage.blob._shared import base_client_async

    monkeypatch.setattr(base_client_async, "READ_TIMEOUT", IMPATIENCE_S["az"])
