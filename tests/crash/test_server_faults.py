"""Commits through s3fs, adlfs and gcsfs to real servers that refuse, lose answers and are late.

Each fault meets every kind of request with which an append changes something, and then all requests
for commit files. No commit may be lost or be there twice; `outcome` answers later what is unknown.
"""

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from crash_kit import SCHEMA, events
from fault_proxy import Answer, FaultProxy, HttpFault
from fixtures_servers import FETCHES, LARGE_BODIES, hasty_options
from object_servers import Server

from segstore_ds.errors import CommitUnknownError, ConflictError, StorageError
from segstore_ds.log.clock import Clock
from segstore_ds.log.lookup import OutcomeState
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

pytestmark = [*FETCHES, LARGE_BODIES]

KINDS = ("conflict", "busy", "slow-down", "lost", "garbled", "cut", "late", "sleep")
ALL_VERBS = ("PUT", "POST", "GET", "HEAD")
# The names of commit files begin with a digit, the hint's does not.
COMMITS = "log/0"
# Where a fault meets an append, and whether a writer id would hide that it was done twice.
STEPS = (("segments/", True), (COMMITS, False), (COMMITS, True), ("log/_latest", True))
SEGMENTS = Layout(inline_bytes=0)
CLOCK = Clock(sleep=lambda _: None)
# How each store says that a conflict has no winner yet, that it is busy, and that it fails.
REFUSALS = {
    "s3": {
        "conflict": (409, "ConditionalRequestConflict"),
        "busy": (503, "ServiceUnavailable"),
        "slow-down": (503, "SlowDown"),
        "lost": (500, "InternalError"),
    },
    "gcs": {
        "conflict": (409, "conflict"),
        "busy": (503, "backendError"),
        "slow-down": (429, "rateLimitExceeded"),
        "lost": (500, "internalError"),
    },
    "az": {
        "conflict": (409, "OperationTimedOut"),
        "busy": (503, "ServerBusy"),
        "slow-down": (503, "ServerBusy"),
        "lost": (500, "InternalError"),
    },
}


def make_fault(kind: str, scheme: str) -> HttpFault:
    """Return a fault as the stores of a scheme would show it."""
    if kind == "garbled":
        # As a gateway on the way may put it, after the server has stored the object.
        return HttpFault("lose", Answer(200, b"<html>", (("Content-Type", "text/html"),)))
    if kind not in REFUSALS[scheme]:
        return HttpFault(kind)  # type: ignore[arg-type]
    answer = refusal(scheme, *REFUSALS[scheme][kind])
    return HttpFault("lose" if kind == "lost" else "refuse", answer)


def refusal(scheme: str, status: int, code: str) -> Answer:
    """Return the answer with which a store of a scheme refuses."""
    if scheme == "gcs":
        error = {"code": status, "message": code, "errors": [{"reason": code, "message": code}]}
        body = json.dumps({"error": error}).encode()
        return Answer(status, body, (("Content-Type", "application/json"),))
    body = f"<Error><Code>{code}</Code><Message>made by the tests</Message></Error>".encode()
    headers = [("Content-Type", "application/xml")]
    if scheme == "az":
        headers.append(("x-ms-error-code", code))
    return Answer(status, body, tuple(headers))


@pytest.fixture
def pair(
    server: Server, proxy: FaultProxy, kind: str, request: pytest.FixtureRequest
) -> tuple[Storage, Storage]:
    """Return one place twice: straight, and through the proxy.

    There the client gives up soon, but only where the fault is an answer that does not come: on a
    busy machine, a sound answer may take as long.
    """
    patient = kind not in ("late", "sleep")
    request.getfixturevalue("hasty_clients" if patient else "impatient_clients")
    behind = server.behind(proxy.endpoint).options
    behind = {**behind, **hasty_options(server.program.scheme, patient=patient)}
    place = f"{server.new_bucket()}/s"
    return open_storage(place, server.options), open_storage(place, behind)


def append(handle: Stream, batch: pa.Table, **options: Any) -> Exception | None:
    """Append a batch and return the error that says that it was not, or perhaps was."""
    try:
        handle.append(batch, layout=SEGMENTS, **options)
    except (StorageError, ConflictError, CommitUnknownError) as error:
        return error
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_append_overcomes_a_fault_of_one_request(
    server: Server, proxy: FaultProxy, pair: tuple[Storage, Storage], kind: str
) -> None:
    """At each of its requests that changes something; a repeated batch is there once."""
    straight, through = pair
    fault = make_fault(kind, server.program.scheme)
    create_on(straight, SCHEMA, clock=CLOCK)
    for batch, (text, keyed) in enumerate(STEPS):
        handle, rows = open_on(through, clock=CLOCK), events(batch * 2, batch * 2 + 2)
        key = {"writer_id": "w", "batch_id": batch} if keyed else {}
        proxy.arm(replace(fault, text=text))
        error = append(handle, rows, **key)
        assert proxy.struck, text
        # What fails before the commit's put is known exactly; the put is tried until it is known.
        assert error is None or text != COMMITS, repr(error)
        assert open_on(straight).tail == (batch * 2 if error else batch * 2 + 2), repr(error)
        if keyed:
            assert append(handle, rows, **key) is None
    stream = open_on(straight)
    assert stream.read().read_all().equals(events(0, 2 * len(STEPS)))
    stream.verify().check()


@pytest.mark.parametrize("kind", ["busy", "slow-down", "lost", "cut", "late"])
def test_lasting_fault_of_the_log_leaves_an_outcome(
    server: Server, proxy: FaultProxy, pair: tuple[Storage, Storage], kind: str
) -> None:
    """As long as it lasts the commit is unknown; then `outcome` tells exactly what is so."""
    straight, through = pair
    stream = create_on(straight, SCHEMA, clock=CLOCK)
    handle = open_on(through, clock=CLOCK)
    through.profile = replace(
        through.profile, trust_s=600.0
    )  # on a slow machine, too, the base is not looked at before the put
    fault = make_fault(kind, server.program.scheme)
    proxy.arm(replace(fault, text=COMMITS, verbs=ALL_VERBS, calls=10**9))
    error = append(handle, events(0, 2))
    assert isinstance(error, CommitUnknownError), repr(error)
    proxy.arm(None)
    named = error.fields["transaction"], error.fields["version"]
    landed = kind not in ("busy", "slow-down")
    for one in (handle, stream):
        found = one.outcome(*named).state
        assert found is (OutcomeState.COMMITTED if landed else OutcomeState.UNKNOWN)
    assert open_on(straight).tail == (2 if landed else 0)
    # Another commit takes the number that was free.
    assert append(handle, events(2, 4)) is None
    found = stream.outcome(*named).state
    assert found is (OutcomeState.COMMITTED if landed else OutcomeState.NOT_COMMITTED)
    assert stream.refresh().read().read_all().equals(events(0 if landed else 2, 4))
    stream.verify().check()
