"""What real servers answer where the place or the keys are wrong: an error with the remedy.

It is the same on every path, reads too: what can't be read is neither empty nor missing.
fake-gcs-server knows no credentials, so a proxy refuses them in the words of the real service.
"""

import base64
import datetime as dt
import json
import secrets
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from fault_proxy import Answer, FaultProxy, HttpFault
from fixtures_servers import FETCHES, LARGE_BODIES
from object_servers import Server

import segstore_ds as segstore
from segstore_ds.errors import StorageError
from segstore_ds.storage import Storage, objects, open_storage

pytestmark = [*FETCHES, LARGE_BODIES, pytest.mark.usefixtures("hasty_clients")]

SCHEMA = pa.schema([("n", pa.int64())])
UNREACHABLE = "http://127.0.0.1:9"  # the port "discard": nobody listens there
REMEDIES = {
    "missing": "does not exist: create it first",
    "unreachable": "no connection to the store",
    "wrong-key": "refuses these credentials",
    "denied": "refuses these credentials",
}
GCS_REFUSALS = {
    "wrong-key": (401, "authError", "Invalid Credentials"),
    "denied": (403, "forbidden", "somebody does not have storage.objects.get access"),
}


def stage(storage: Storage) -> None:
    """Write a small object in the way of segments."""
    with storage.open_staged("segments/t/0") as writer:
        writer.write(b"x")
        writer.commit()


CALLS: dict[str, Callable[[Storage], object]] = {
    "get": lambda storage: storage.get("log/1"),
    "get, bounded": lambda storage: storage.get("log/1", limit_bytes=10),
    "get_range": lambda storage: storage.get_range("log/1", 0, 5),
    "info": lambda storage: storage.info("log/1"),
    "list": lambda storage: list(storage.list("log")),
    "list from": lambda storage: list(storage.list("segments", "0")),
    "peek": lambda storage: storage.peek("", 5),
    "folders": lambda storage: storage.folders(""),
    "temporaries": lambda storage: list(storage.temporaries()),
    "create": lambda storage: storage.create("log/1", b"x"),
    "put": lambda storage: storage.put("log/1", b"x"),
    "stage": stage,
    "ensure_exclusive": lambda storage: storage.ensure_exclusive(),
    "segstore.open": lambda at: segstore.open(at.url, storage_options=at._options),
    "segstore.exists": lambda at: segstore.exists(at.url, storage_options=at._options),
    "segstore.create": lambda at: segstore.create(at.url, SCHEMA, storage_options=at._options),
}


def options_of(server: Server, case: str, proxy: FaultProxy) -> dict[str, Any]:
    """Return the options with which a case is met."""
    scheme = server.program.scheme
    if case == "unreachable":
        haste = {"config_kwargs": {"retries": {"max_attempts": 0}}} if scheme == "s3" else {}
        return {**server.behind(UNREACHABLE).options, **haste}
    if case == "missing":
        return server.options
    if scheme == "s3":
        keys = {"anon": True} if case == "denied" else {"key": server.key, "secret": "x" * 40}
        return {"endpoint_url": server.endpoint, **keys}
    if scheme == "az":
        if case == "wrong-key":
            return replace(server, secret=base64.b64encode(b"x" * 64).decode()).options
        token = f"SharedAccessSignature={deleting_only(server)}"
        return {"connection_string": f"BlobEndpoint={server.endpoint}/{server.key};{token}"}
    status, reason, message = GCS_REFUSALS[case]
    error = {"code": status, "message": message, "errors": [{"reason": reason}]}
    answer = Answer(status, json.dumps({"error": error}).encode())
    verbs = ("PUT", "POST", "GET", "HEAD", "DELETE")
    proxy.arm(HttpFault("refuse", answer, calls=10**9, verbs=verbs))
    return server.behind(proxy.endpoint).options


def deleting_only(server: Server) -> str:
    """Return a signature that allows neither reads nor writes."""
    from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas

    return generate_account_sas(
        server.key,
        server.secret,
        ResourceTypes(service=True, container=True, object=True),
        AccountSasPermissions(delete=True),
        dt.datetime.now(dt.UTC) + dt.timedelta(hours=1),
    )


@pytest.mark.parametrize("case", REMEDIES)
def test_each_call_names_the_remedy(
    server: Server, proxy: FaultProxy, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each on a storage that knows nothing yet; what may pass is retryable, the rest is not."""
    monkeypatch.setattr(objects, "_PROBED", set())  # another test may have probed the server
    root = server.new_bucket()
    if case == "missing":
        root = f"{server.program.scheme}://missing-{secrets.token_hex(6)}"
    options = options_of(server, case, proxy)
    for name, call in CALLS.items():
        storage = open_storage(f"{root}/s", options)
        with pytest.raises(StorageError, match=REMEDIES[case]) as caught:
            pytest.fail(f"{name} returned {call(storage)!r}")
        assert caught.value.retryable == (case == "unreachable"), name
        assert server.secret not in "".join(traceback.format_exception(caught.value)), name


def test_a_miss_is_no_failure_where_the_bucket_is_there(server: Server) -> None:
    """The first one asks whether there is a bucket; later ones need not."""
    storage = open_storage(f"{server.new_bucket()}/s", server.options)
    for call in (CALLS["info"], CALLS["get"], CALLS["get_range"]):
        with pytest.raises(segstore.errors.MissingObjectError):
            call(storage)
    assert CALLS["list from"](storage) == CALLS["temporaries"](storage) == []
    assert not segstore.exists(storage.url, storage_options=server.options)
    with pytest.raises(segstore.errors.NotFoundError):
        segstore.open(storage.url, storage_options=server.options)
