"""Real object store servers: each is fetched once, then runs on a free loopback port.

A server is built or installed by the ordinary client of its registry into the user's cache folder,
under its version; `python tests/object_servers.py` fetches all of them. A running server is
bounded: it ends with the process that started it, or after three hours; no file of it may exceed
1 GiB.
"""

import base64
import fcntl
import json
import os
import resource
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "segstore-servers"
MOST_FETCH_S = 1500
MOST_START_S = 90
MOST_RUN_S = 3 * 3600  # longer than the soak
MOST_FILE_BYTES = 1 << 30
MOST_MEMORY_MIB = 1024


class ServerUnavailableError(Exception):
    """This machine lacks what fetches a server; the text names the command that would."""


@dataclass(frozen=True)
class Program:
    """A server program: where it comes from and how it is started.

    Attributes:
        name: Its name, also of its package or executable.
        version: As its registry spells it.
        scheme: The scheme of locations in it.
        source: The Go module path; empty for a package of npm.
        arguments: Of its command line; `{port}`, `{folder}`, `{key}` and `{secret}` are filled in.
        environment: The same for variables.
        ready: The path that answers 200 once it is ready; empty if any answer says so.
    """

    name: str
    version: str
    scheme: str
    source: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    ready: str = ""

    @property
    def command(self) -> list[str]:
        """The command that fetches it."""
        if self.source:
            return ["go", "install", "-ldflags=-s -w", f"{self.source}@{self.version}"]
        options = ["--no-fund", "--no-audit", "--omit=dev", "--ignore-scripts"]
        return ["npm", "install", *options, f"{self.name}@{self.version}"]

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools that fetch it; a package of npm needs them to run, too."""
        return ("go",) if self.source else ("npm", "node")

    @property
    def folder(self) -> Path:
        """Where it is kept."""
        return CACHE / f"{self.name}-{self.version}"

    @property
    def executable(self) -> Path:
        """What is started."""
        if self.source:
            return self.folder / self.name
        return self.folder / "node_modules" / self.name / "dist/src/blob/main.js"


MINIO = Program(
    name="minio",
    version="v0.0.0-20260212201848-7aac2a2c5b7c",
    scheme="s3",
    source="github.com/minio/minio",
    arguments=(
        "server",
        "--quiet",
        "--certs-dir={folder}/certs",
        "--address=127.0.0.1:{port}",
        "--console-address=127.0.0.1:0",
        "{folder}/data",
    ),
    environment={
        "MINIO_ROOT_USER": "{key}",
        "MINIO_ROOT_PASSWORD": "{secret}",
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",
    },
    ready="minio/health/ready",
)
VERSITYGW = Program(
    name="versitygw",
    version="v1.8.0",
    scheme="s3",
    source="github.com/versity/versitygw/cmd/versitygw",
    arguments=("--quiet", "--port=127.0.0.1:{port}", "posix", "--nometa", "{folder}/data"),
    environment={"ROOT_ACCESS_KEY": "{key}", "ROOT_SECRET_KEY": "{secret}"},
)
FAKE_GCS = Program(
    name="fake-gcs-server",
    version="v1.56.1",
    scheme="gcs",
    source="github.com/fsouza/fake-gcs-server",
    arguments=(
        "-scheme=http",
        "-host=127.0.0.1",
        "-port={port}",
        "-backend=memory",
        "-external-url=http://127.0.0.1:{port}",
        "-log-level=warn",
    ),
)
AZURITE = Program(
    name="azurite",
    version="3.37.0",
    scheme="az",
    source="",
    arguments=(
        "--blobPort={port}",
        "--inMemoryPersistence",
        "--extentMemoryLimit=512",
        "--skipApiVersionCheck",
        "--disableTelemetry",
        "--silent",
    ),
    environment={"AZURITE_ACCOUNTS": "{key}:{secret}"},
)
PROGRAMS = (MINIO, AZURITE, FAKE_GCS, VERSITYGW)


@dataclass(frozen=True)
class Server:
    """A running server and the keys it is used with; pickles."""

    program: Program
    endpoint: str
    key: str
    secret: str

    @property
    def options(self) -> dict[str, Any]:
        """Storage options that reach it."""
        if self.program.scheme == "s3":
            return {"endpoint_url": self.endpoint, "key": self.key, "secret": self.secret}
        if self.program.scheme == "gcs":
            return {"endpoint_url": self.endpoint, "token": "anon", "project": "test"}
        account = f"AccountName={self.key};AccountKey={self.secret};"
        return {
            "connection_string": "DefaultEndpointsProtocol=http;"
            f"{account}BlobEndpoint={self.endpoint}/{self.key};"
        }

    def behind(self, endpoint: str) -> "Server":
        """Return the same server, reached through a proxy."""
        return replace(self, endpoint=endpoint)

    def new_bucket(self) -> str:
        """Make a bucket or container and return its URL."""
        import fsspec

        bucket = f"bucket-{secrets.token_hex(6)}"
        fs = fsspec.filesystem(self.program.scheme, **self.options, use_listings_cache=False)
        fs.mkdir(bucket)
        return f"{self.program.scheme}://{bucket}"


def fetch(program: Program) -> Path:
    """Return a program's executable, after fetching it where it is not in the cache.

    Raises:
        ServerUnavailableError: The tool that fetches it is missing, or too old.
        RuntimeError: The tool failed.
    """
    for tool in () if program.source and program.executable.exists() else program.tools:
        if shutil.which(tool) is None:
            raise ServerUnavailableError(
                f"{program.name}: {tool} is missing: install it, then `python tests/"
                f"object_servers.py` fetches the server by `{shlex.join(program.command)}`"
            )
    if program.executable.exists():
        return program.executable
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{program.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of processes that need it at once, one fetches it
        if not program.executable.exists():
            folder = tempfile.mkdtemp(dir=CACHE)
            try:
                _fetch_into(program, folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)  # where it was not renamed
    return program.executable


def _fetch_into(program: Program, folder: str) -> None:
    # The installed Go builds what it can; it downloads no other one.
    settings = {"GOBIN": folder, "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
    # A Spark Connect session of this process would be asked for by the child, too.
    own = {name: text for name, text in os.environ.items() if not name.startswith("SPARK_")}
    command = shlex.join(program.command)
    try:
        done = subprocess.run(
            program.command,
            cwd=folder,
            env={**own, **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=MOST_FETCH_S,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        said = f"{program.name}: `{command}` took more than {MOST_FETCH_S} s"
        raise RuntimeError(said) from late
    if done.returncode == 0:
        shutil.rmtree(program.folder, ignore_errors=True)
        Path(folder).rename(program.folder)
        return
    said = f"{program.name}: `{command}` failed: {done.stdout[-1000:]}"
    raise ServerUnavailableError(said) if "requires go >=" in said else RuntimeError(said)


@contextmanager
def running(program: Program, folder: Path) -> Iterator[Server]:
    """Run a server whose data and log lie in a folder; raises as `fetch` does."""
    executable = str(fetch(program))
    key, secret = _new_keys(program)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    (folder / "data").mkdir()
    filled = {"port": port, "folder": str(folder), "key": key, "secret": secret}
    start = [executable] if program.source else ["node", "--max-old-space-size=1024", executable]
    start += [argument.format(**filled) for argument in program.arguments]
    variables = {name: value.format(**filled) for name, value in program.environment.items()}
    bounds = {"GOMEMLIMIT": f"{MOST_MEMORY_MIB}MiB", "HOME": str(folder)}
    known = {**os.environ, **bounds, **variables}
    with guarded(start, folder, known) as guard:
        endpoint = f"http://127.0.0.1:{port}"
        log = folder / "log"
        _await(f"{endpoint}/{program.ready}", guard, log, any_answer=not program.ready)
        yield Server(program, endpoint, key, secret)


@contextmanager
def guarded(
    command: list[str], folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a server as long as this process lives; its log lies in the folder. Yield its guard."""
    with (folder / "log").open("wb") as output:
        guard = subprocess.Popen(
            [sys.executable, __file__, "guard", json.dumps(command)],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
        )
    try:
        yield guard
    finally:
        guard.stdin.close()  # type: ignore[union-attr]
        guard.wait(MOST_START_S)


def _new_keys(program: Program) -> tuple[str, str]:
    # Of this run alone, so that a search for the secret finds only real leaks.
    key = f"key{secrets.token_hex(8)}"
    if program.scheme == "az":
        return key, base64.b64encode(secrets.token_bytes(64)).decode()
    return key, f"secret{secrets.token_hex(16)}"


def _await(url: str, guard: subprocess.Popen[bytes], log: Path, *, any_answer: bool) -> None:
    until = time.monotonic() + MOST_START_S
    while guard.poll() is None and time.monotonic() < until:
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - our own server's
                return
        except urllib.error.HTTPError:
            if any_answer:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"server does not start: {url}: {log.read_text(errors='replace')[-2000:]}")


def guard_server(command: list[str]) -> None:
    """Run a server until the caller closes our input, the time is over, or the server ends."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_FILE_BYTES, MOST_FILE_BYTES))
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    over = threading.Event()

    def await_caller() -> None:
        sys.stdin.buffer.read()
        over.set()

    def await_server() -> None:
        server.wait()
        over.set()

    for target in (await_caller, await_server):
        threading.Thread(target=target, daemon=True).start()
    over.wait(MOST_RUN_S)
    server.terminate()
    try:
        server.wait(10)
    except subprocess.TimeoutExpired:
        server.kill()
    # The thread that reads our input can't be joined.
    os._exit(0)


def main() -> int:
    """Fetch every server and say how that went; return the number that failed."""
    failed = 0
    for program in PROGRAMS:
        start = time.monotonic()
        try:
            fetch(program)
        except ServerUnavailableError as missing:
            print(f"server skipped: {missing}", flush=True)
        except RuntimeError as error:
            failed += 1
            print(f"server failed: {error}", flush=True)
        else:
            took = time.monotonic() - start
            print(f"server ready: {program.name} {program.version}, {took:.0f} s", flush=True)
    return failed


if __name__ == "__main__":
    if sys.argv[1:2] == ["guard"]:
        guard_server(json.loads(sys.argv[2]))
    sys.exit(main())
