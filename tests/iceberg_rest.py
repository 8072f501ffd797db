"""An Iceberg REST catalog with as much of the protocol as registering tables needs."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pyiceberg.catalog.rest import RestCatalog


class _Handler(BaseHTTPRequestHandler):
    """Keeps where the metadata of each table is; the server has the tables."""

    def _answer(self, status: int, body: dict[str, Any] | None = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _table(self, name: str) -> dict[str, Any]:
        location = self.server.tables[name]  # type: ignore[attr-defined]
        metadata = json.loads(Path(location.removeprefix("file://")).read_text())
        return {"metadata-location": location, "metadata": metadata, "config": {}}

    def _missing(self) -> None:
        error = {"message": "no such table", "type": "NoSuchTableException", "code": 404}
        self._answer(404, {"error": error})

    def do_GET(self) -> None:
        """Answer the configuration, or a table."""
        if self.path.startswith("/v1/config"):
            self._answer(200, {"defaults": {}, "overrides": {}})
        elif (name := self.path.rpartition("/")[2]) in self.server.tables:  # type: ignore[attr-defined]
            self._answer(200, self._table(name))
        else:
            self._missing()

    def do_HEAD(self) -> None:
        """Tell whether there is a table."""
        known = self.path.rpartition("/")[2] in self.server.tables  # type: ignore[attr-defined]
        self._answer(204 if known else 404)

    def do_POST(self) -> None:
        """Register a table."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tables = self.server.tables  # type: ignore[attr-defined]
        if asked["name"] in tables:
            error = {"message": "exists", "type": "AlreadyExistsException", "code": 409}
            self._answer(409, {"error": error})
            return
        tables[asked["name"]] = asked["metadata-location"]
        self._answer(200, self._table(asked["name"]))

    def do_DELETE(self) -> None:
        """Forget a table."""
        del self.server.tables[self.path.rpartition("/")[2].partition("?")[0]]  # type: ignore[attr-defined]
        self._answer(204)

    def log_message(self, *args: object) -> None:
        """Print nothing."""


@contextmanager
def rest_catalog() -> Iterator[RestCatalog]:
    """Yield pyiceberg's client of a catalog."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.tables = {}  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield RestCatalog("rest", uri=f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
