"""An S3 server that takes its time: moto's, with a delay before every request, each one logged.

Run as a program: `python -m benchmarks.s3_server LOG SECONDS` prints its port.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def serve(log: Path, delay_s: float) -> None:
    """Run until the process is ended."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    application = DomainDispatcherApplication(create_backend_app)
    lock = threading.Lock()

    def slow(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        time.sleep(delay_s)
        with lock, log.open("a") as file:
            file.write(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}\n")
        return application(environ, start_response)

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept, as by real stores

        def log(self, *_: Any) -> None:
            pass

    server = make_server("127.0.0.1", 0, slow, threaded=True, request_handler=Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


@contextmanager
def running(folder: Path, delay_s: float) -> Iterator[tuple[dict[str, Any], Path]]:
    """Give the options of a server that runs by itself, with the bucket `bench`, and its log."""
    log = folder / "requests"
    log.touch()
    command = [sys.executable, "-m", "benchmarks.s3_server", str(log), str(delay_s)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        port = process.stdout.readline().strip()  # type: ignore[union-attr]
        options = {
            "endpoint_url": f"http://127.0.0.1:{port}",
            "key": "benchmark",
            "secret": "benchmark",
        }
        from s3fs.core import S3FileSystem

        S3FileSystem(**options, use_listings_cache=False).mkdir("bench")
        yield options, log
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), float(sys.argv[2]))
