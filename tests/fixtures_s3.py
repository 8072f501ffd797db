"""An S3 server over real HTTP, in a process of its own, and buckets in it.

The server is moto's. moto looks whether a key exists and writes it a moment later, so two of its
threads can both let a conditional put through; requests therefore pass one lock, as they pass the
one index of a real store. Each request is written to a log, which tests count.

Run as a program it is the server: `python fixtures_s3.py LOG` prints its port.
"""

import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class S3Server:
    """A running server and the keys it is used with."""

    endpoint: str
    key: str
    secret: str
    log: Path

    @property
    def options(self) -> dict[str, Any]:
        """Storage options that reach it."""
        return {"endpoint_url": self.endpoint, "key": self.key, "secret": self.secret}

    def new_bucket(self, kind: str = "bucket") -> str:
        """Make a bucket and return its name.

        Kinds of misbehaving buckets: `ignoring` takes no notice of conditions, `conflicting`
        answers every conditional put with 409, `forgetful` does the first put of a key and
        answers 500, `curt` answers 412 without naming the condition, `lacking` answers every
        conditional put with 501, and `plain` every put with a checksum.
        """
        from s3fs.core import S3FileSystem

        bucket = f"{kind}-{secrets.token_hex(6)}"
        S3FileSystem(**self.options, use_listings_cache=False).mkdir(bucket)
        return bucket

    def requests(self, work: Callable[[], Any]) -> list[str]:
        """Do something and return the requests that reached the server meanwhile."""
        before = self.log.stat().st_size
        work()
        with self.log.open() as file:
            file.seek(before)
            return file.read().splitlines()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server for the whole session, also for child processes of the tests."""
    folder = tmp_path_factory.mktemp("s3")
    log = folder / "requests"
    log.touch()
    with (folder / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, __file__, str(log)], stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        port = process.stdout.readline().strip()  # type: ignore[union-attr]
        assert port, (folder / "stderr").read_text()
        # Keys of this session alone, so that a search for the secret finds only real leaks.
        key, secret = f"key{secrets.token_hex(8)}", f"secret{secrets.token_hex(16)}"
        yield S3Server(f"http://127.0.0.1:{port}", key, secret, log)
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


def serve(log: Path) -> None:
    """Run the server until the process is ended."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    application = DomainDispatcherApplication(create_backend_app)
    lock = threading.Lock()

    def logged(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with lock:
            with log.open("a") as file:
                query = f"?{environ['QUERY_STRING']}" if environ["QUERY_STRING"] else ""
                file.write(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}{query}\n")
            return [b"".join(misbehaving(environ, start_response))]

    def misbehaving(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        kind = environ["PATH_INFO"].lstrip("/").partition("-")[0]
        conditional = environ["REQUEST_METHOD"] == "PUT" and "HTTP_IF_NONE_MATCH" in environ
        if kind == "ignoring":
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if kind == "conflicting" and conditional:
            environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
            return refuse(start_response, "409 Conflict", "ConditionalRequestConflict")
        summed = any(name.startswith(("HTTP_X_AMZ_CHECKSUM", "HTTP_X_AMZ_SDK")) for name in environ)
        summed = summed and environ["REQUEST_METHOD"] == "PUT"
        if (kind == "lacking" and conditional) or (kind == "plain" and summed):
            environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
            return refuse(start_response, "501 Not Implemented", "NotImplemented")
        if kind not in ("forgetful", "curt") or not conditional:
            return application(environ, start_response)
        status = []
        body = list(application(environ, lambda line, headers: status.append((line, headers))))
        if kind == "forgetful" and status[0][0].startswith("200"):
            return refuse(start_response, "500 Internal Server Error", "InternalError")
        if kind == "curt" and status[0][0].startswith("412"):
            return refuse(start_response, "412 Precondition Failed", "PreconditionFailed")
        start_response(*status[0])
        return body

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept, as by real stores

        def log(self, *_: Any) -> None:
            pass

    server = make_server("127.0.0.1", 0, logged, threaded=True, request_handler=Handler)
    print(server.server_port, flush=True)  # noqa: T201
    server.serve_forever()


def refuse(start_response: Any, status: str, code: str) -> list[bytes]:
    """Answer as S3 does when it refuses."""
    body = f"<Error><Code>{code}</Code><Message>made by the tests</Message></Error>".encode()
    headers = [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))]
    start_response(status, headers)
    return [body]


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
