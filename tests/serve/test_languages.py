"""The clients in Go and JavaScript beside the page on other engines, as a reader would run them."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import segstore_ds as segstore

DOCS = Path(segstore.__file__).parent / "docs"
SEEN = "bob 2\ncyd 3\n"

pytestmark = pytest.mark.slow


@pytest.fixture
def place(tmp_path: Path) -> Iterator[str]:
    """The host and port of a server of the stream `clicks`."""
    events = pa.table({"user": ["ada", "bob", "cyd"], "n": [1, 2, 3]})
    stream = segstore.create(tmp_path / "clicks", events.schema)
    stream.append(events)
    command = [sys.executable, "-m", "segstore_ds.cli.main", "--json", "serve", stream.url]
    with subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield json.loads(server.stdout.readline())["location"].removeprefix("grpc://")
        server.terminate()


def _run(*command: str, folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.sweep  # of its minute and a half, all but a second compiles the client
@pytest.mark.skipif(shutil.which("go") is None, reason="needs Go")
def test_go(place, tmp_path):
    shutil.copy(DOCS / "flight.go", tmp_path)
    (tmp_path / "go.mod").write_text("module example\n\ngo 1.24\n", encoding="utf-8")
    _run("go", "mod", "tidy", folder=tmp_path)
    assert _run("go", "run", ".", place, folder=tmp_path) == SEEN


@pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")
def test_javascript(place, tmp_path):
    shutil.copy(DOCS / "flight.mjs", tmp_path)
    page = (DOCS / "other_engines.md").read_text(encoding="utf-8")
    packages = re.findall(r"`npm install (.*?) && node flight.mjs", page)[0].split()
    _run("npm", "install", "--no-audit", "--no-fund", *packages, folder=tmp_path)
    assert _run("node", "flight.mjs", place, folder=tmp_path) == SEEN
