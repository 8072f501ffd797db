"""A proxy between a client and a real object store server that fails requests on purpose."""

import http.client
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

PATIENCE_S = 60
# Of one connection, from the server to the client; the rest is about another connection.
_LEFT_OUT = {"connection", "transfer-encoding", "keep-alive", "content-length"}


@dataclass(frozen=True)
class Answer:
    """What the proxy says itself."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class HttpFault:
    """Which requests fail, and how.

    Attributes:
        kind: ``refuse`` answers without asking the server; ``lose`` asks it, then answers that;
            ``cut`` asks it, then ends the connection; ``late`` asks it, and answers once the client
            has given up; ``sleep`` asks it only once the client has given up.
        answer: For the first two.
        calls: How many requests fail.
        text: What the request's URL, or the head of its body, contains.
        verbs: The methods of requests that fail.
    """

    kind: Literal["refuse", "lose", "cut", "late", "sleep"]
    answer: Answer = Answer(503)
    calls: int = 1
    text: str = ""
    verbs: tuple[str, ...] = ("PUT", "POST")


class FaultProxy(ThreadingHTTPServer):
    """Passes requests on to one server; `fault` says which of the next ones fail."""

    daemon_threads = True

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = urlsplit(target).netloc
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        self.struck: list[str] = []
        self._fault: HttpFault | None = None
        self._left = 0
        self._lock = threading.Lock()

    def arm(self, fault: HttpFault | None) -> None:
        """Fail requests from now on; None stops that."""
        with self._lock:
            self._fault, self._left = fault, fault.calls if fault else 0
            self.struck.clear()

    def take(self, verb: str, path: str, body: bytes) -> HttpFault | None:
        """Return the fault of a request, if it has one, and count it."""
        with self._lock:
            fault = self._fault
            if fault is None or self._left == 0 or verb not in fault.verbs:
                return None
            if fault.text not in unquote(path) and fault.text.encode() not in body[:1000]:
                return None
            self._left -= 1
            self.struck.append(f"{verb} {path}")
            return fault

    def handle_error(self, *_: Any) -> None:
        """Say nothing of clients that go away."""


class _Handler(BaseHTTPRequestHandler):
    server: FaultProxy
    protocol_version = "HTTP/1.1"

    def pass_on(self) -> None:
        """Handle one request."""
        body = self._body()
        fault = self.server.take(self.command, self.path, body)
        if fault is None:
            self._say(self._ask(body))
        elif fault.kind == "refuse":
            self._say(fault.answer)
        elif fault.kind == "lose":
            self._ask(body)
            self._say(fault.answer)
        elif fault.kind == "sleep":
            self._await_that_client_gives_up()
            self._ask(body)
            self._end()
        else:
            self._ask(body)
            if fault.kind == "late":
                self._await_that_client_gives_up()
            self._end()

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = do_PATCH = pass_on  # noqa: N815

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _ask(self, body: bytes) -> Answer:
        connection = http.client.HTTPConnection(self.server.target, timeout=PATIENCE_S)
        try:
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                # A body that came in pieces is passed on as a whole; others have said their length.
                if name.lower() not in ("transfer-encoding", "expect", "connection"):
                    connection.putheader(name, value)
            if "Transfer-Encoding" in self.headers:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            found = connection.getresponse()
            headers = [pair for pair in found.getheaders() if pair[0].lower() not in _LEFT_OUT]
            content = found.read()
            if self.command == "HEAD" and (size := found.getheader("Content-Length")):
                headers.append(("Content-Length", size))
            return Answer(found.status, content, tuple(headers))
        finally:
            connection.close()

    def _say(self, answer: Answer) -> None:
        self.send_response_only(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        if not any(name == "Content-Length" for name, _ in answer.headers):
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def _await_that_client_gives_up(self) -> None:
        select.select([self.connection], [], [], PATIENCE_S)

    def _end(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def fault_proxy(target: str) -> Iterator[FaultProxy]:
    """Run a proxy before a server."""
    proxy = FaultProxy(target)
    thread = threading.Thread(target=proxy.serve_forever)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()
