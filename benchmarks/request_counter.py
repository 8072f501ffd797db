"""A proxy on the loopback address that counts the requests on their way to an S3 server.

It counts what clients of any language send. Bytes pass unchanged, so signatures stay valid.
"""

import re
import socket
import socketserver
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

CHUNK = 1 << 16
# A client sends its next request when it has the answer, so each one begins a chunk.
_REQUEST = re.compile(rb"(GET|HEAD|PUT|POST|DELETE) (\S+) HTTP/1\.1\r\n")


class RequestCounter:
    """Counts by kind: put, get, list, head, delete."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def note(self, chunk: bytes) -> None:
        """Count the request that a chunk begins, if it does."""
        found = _REQUEST.match(chunk)
        if found is None:
            return
        method, target = found[1].decode().lower(), found[2]
        kind = {"post": "put"}.get(method, method)
        if method == "get" and b"list-type=" in target:
            kind = "list"
        if method == "post" and target.endswith((b"?delete", b"?delete=")):
            kind = "delete"
        with self._lock:
            self.counts[kind] += 1

    def take(self) -> Counter[str]:
        """Return the counts since the last call."""
        with self._lock:
            taken, self.counts = self.counts, Counter()
        return taken


@contextmanager
def counting(endpoint: str) -> Iterator[tuple[str, RequestCounter]]:
    """Give the endpoint of a proxy before another endpoint, and its counter."""
    place, counter = urlsplit(endpoint), RequestCounter()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection((place.hostname, place.port)) as server:
                for side in (self.request, server):
                    side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                back = threading.Thread(target=_pump, args=(server, self.request), daemon=True)
                back.start()
                _pump(self.request, server, counter)
                back.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as proxy:
        proxy.daemon_threads = True
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{proxy.server_address[1]}", counter
        finally:
            proxy.shutdown()


def _pump(
    source: socket.socket, target: socket.socket, counter: RequestCounter | None = None
) -> None:
    """Pass bytes on until the source ends."""
    try:
        while chunk := source.recv(CHUNK):
            if counter is not None:
                counter.note(chunk)
            target.sendall(chunk)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return  # one side is gone: its client tries again
