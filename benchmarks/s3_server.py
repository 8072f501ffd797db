"""An S3 server that takes its time: moto's, with a delay before every request, each one logged.

Run as a program: `python -m benchmarks.s3_server LOG SECONDS` prints its port.
"""

import sys
import threading
import time
from collections.abc import Iterable
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


if __name__ == "__main__":
    serve(Path(sys.argv[1]), float(sys.argv[2]))
