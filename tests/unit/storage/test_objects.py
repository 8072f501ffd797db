"""A dead endpoint is given up soon, and a slow one is waited for; both are said."""

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from fsspec.asyn import get_loop

import segstore_ds as segstore
from segstore_ds.errors import StorageError
from segstore_ds.storage import objects, open_storage

AZURE_KEY = "a2V5"


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten both times, as if this were a new process, in which no proxy is set."""
    monkeypatch.setattr(objects, "NOTICE_S", 0.1)
    monkeypatch.setattr(objects, "PATIENCE_S", 0.4)
    monkeypatch.setattr(objects, "_answered", set())
    monkeypatch.setattr(objects, "_gave_up", {})
    monkeypatch.setattr(objects, "getproxies", dict)


@pytest.fixture
def closed() -> Iterator[str]:
    """An endpoint that refuses connections."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # but does not listen
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


def options(scheme: str, endpoint: str, **more: Any) -> dict[str, Any]:
    """Return storage options that reach an endpoint."""
    if scheme == "s3":
        return {"endpoint_url": endpoint, "key": "k", "secret": "s", **more}
    if scheme == "gs":
        return {"endpoint_url": endpoint, "token": "anon", **more}
    account = f"AccountName=a;AccountKey={AZURE_KEY};BlobEndpoint={endpoint}/a;"
    return {"connection_string": f"DefaultEndpointsProtocol=http;{account}", **more}


@contextmanager
def answering(may_answer: threading.Event) -> Iterator[tuple[str, list[str]]]:
    """Serve objects once it may; yields the endpoint and what was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        """Answers late."""

        def do_GET(self) -> None:
            """Answer with one byte."""
            asked.append(self.path)
            assert may_answer.wait(30)
            self.send_response(200)
            self.send_header("Content-Length", "1")
            self.end_headers()
            self.wfile.write(b"x")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        may_answer.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(("scheme", "module"), [("s3", "s3fs"), ("gs", "gcsfs"), ("abfs", "adlfs")])
def test_dead_endpoint_is_given_up_before_a_request(
    scheme: str, module: str, closed: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The clients would go on for up to minutes; a second call asks only once more."""
    pytest.importorskip(module)
    with caplog.at_level(logging.WARNING, objects.__name__):
        with pytest.raises(StorageError, match="check the endpoint") as caught:
            segstore.open(f"{scheme}://bucket/s", storage_options=options(scheme, closed))
        assert caught.value.retryable
        assert "ConnectionError: no connection to" in caught.value.fields["cause"]
    (said,) = caplog.messages
    assert said.startswith(f"waiting for a connection to {closed}")


def test_secrets_of_an_endpoint_are_not_said(closed: str, caplog: pytest.LogCaptureFixture) -> None:
    """A user with a password, or a signature."""
    secret = f"{closed.replace('//', '//user:hidden@')}/a?sig=hidden"
    with (
        caplog.at_level(logging.WARNING, objects.__name__),
        objects.FirstContact(secret, answers=True) as contact,
        pytest.raises(ConnectionError, match=f"no connection to {closed}:") as caught,
    ):
        contact.connect(get_loop())
    assert "hidden" not in str(caught.value) + caplog.text


def test_time_outs_of_the_caller_hold(closed: str) -> None:
    """Whoever sets them gets what the client makes of them."""
    pytest.importorskip("s3fs")
    given = options("s3", closed, config_kwargs={"retries": {"max_attempts": 0}})
    with pytest.raises(StorageError, match="EndpointConnectionError"):
        open_storage("s3://bucket/s", given).get("log/1")


def test_endpoint_behind_a_proxy_is_left_to_the_client(
    closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be reached by the proxy alone."""
    pytest.importorskip("s3fs")
    monkeypatch.setattr(objects, "getproxies", lambda: {"http": closed})
    contact = objects.FirstContact("http://127.0.0.1:9", answers=True)
    contact.connect(None)  # needs no loop


def test_slow_answer_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """The store answers only after it was said, so later than a dead endpoint is given up."""
    pytest.importorskip("s3fs")
    may_answer = threading.Event()

    class Said(logging.Handler):
        """Lets the store answer, once that it does not was said."""

        def emit(self, _: logging.LogRecord) -> None:
            threading.Timer(objects.PATIENCE_S, may_answer.set).start()

    said = Said()
    log = logging.getLogger(objects.__name__)
    log.addHandler(said)
    try:
        with answering(may_answer) as (endpoint, asked):
            storage = open_storage("s3://bucket/s", options("s3", endpoint))
            with caplog.at_level(logging.WARNING, objects.__name__):
                for _ in range(2):
                    assert storage.get("log/1") == b"x"
            assert len([path for path in asked if "log/1" in path]) == 2
    finally:
        log.removeHandler(said)
    assert caplog.messages == [f"waiting for an answer of {endpoint}"]


def test_endpoint_that_has_answered_is_left_to_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store that is down for a moment is not given up sooner than the client would."""
    pytest.importorskip("s3fs")
    may_answer = threading.Event()
    may_answer.set()
    with answering(may_answer) as (endpoint, _):
        storage = open_storage("s3://bucket/s", options("s3", endpoint))
        assert storage.get("log/1") == b"x"
        monkeypatch.setattr(objects.FirstContact, "connect", None)  # is not called
        assert storage.get("log/2") == b"x"
