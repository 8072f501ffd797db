"""Fixtures of all tests, the profiles of hypothesis, and which tests run unasked.

``-m slow`` runs what takes longer than a change can wait for, and CI runs it too; ``-m sweep`` runs
the longest sweeps, by hand; ``HYPOTHESIS_PROFILE=nightly`` draws more examples, and so does CI.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from zlib import crc32

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, settings

from segstore_ds.log.clock import Clock
from segstore_ds.log.late_hints import LateHints
from segstore_ds.read.segments import PROCESS_CACHE

sys.path.insert(0, str(Path(__file__).parent))

# Tests start many Python processes, too: without this each would compile all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

pytest_plugins = ["fixtures_s3", "fixtures_servers", "fixtures_streams"]

# The machine of a test may be busy, so nothing is judged by how long an example takes.
_CALM = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=30, derandomize=True, print_blob=True, **_CALM)
settings.register_profile("ci", derandomize=True, print_blob=True, **_CALM)
settings.register_profile("nightly", max_examples=2_000, print_blob=True, **_CALM)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


_LATE_HINTS, _BEGUN = [False], list[str]()


@pytest.fixture(scope="session", autouse=True)
def _note_rounds() -> Iterator[None]:
    """Note which work is begun in the background, and leave out late hints but where asked for."""
    start, note = Clock.start, LateHints.note

    def noted(self: Clock, work: Callable[[], None], name: str) -> None:
        if self.background:
            _BEGUN.append(name)
        start(self, work, name)

    def note_if_asked(*given: object, **how: object) -> None:
        if _LATE_HINTS[0]:
            note(*given, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Clock, "start", noted)
        patch.setattr(LateHints, "note", note_if_asked)
        yield


@pytest.fixture(autouse=True)
def _alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let nothing of a test reach the next one, and no thread run beside it. In one fixture: of
    8,000 tests each one more takes seconds.

    Listing in `memory://` goes through all that is there, and the read cache is the process's.
    A round of upkeep begins with a write to a stream whose commits are older than a day: give the
    stream `upkeep=None`, or a clock without a background.
    """
    marks = {mark.name for mark in request.node.iter_markers()}
    before = set(MemoryFileSystem.store)
    _LATE_HINTS[0] = "late_hints" in marks
    _BEGUN.clear()
    yield
    for name in set(MemoryFileSystem.store) - before:
        del MemoryFileSystem.store[name]
    PROCESS_CACHE.reset()
    if "background_upkeep" not in marks:
        assert _BEGUN == [], "a round of upkeep began beside the test"


# A test with one of these marks runs only if the command names one of the marks behind it, or the
# test itself.
ON_REQUEST = {"slow": ("slow", "sweep", "smoke", "soak"), "sweep": ("sweep",), "soak": ("soak",)}


_BEGUN_CLASSES = []


def pytest_configure(config: pytest.Config) -> None:
    """Slow tests start dozens of JVMs, so one session begins to write what makes that quick."""
    if "slow" in config.option.markexpr and not hasattr(config, "workerinput"):
        import spark_home

        _BEGUN_CLASSES.append(spark_home.begin_classes())


def pytest_unconfigure() -> None:
    """Wait for that session, which has ended long ago."""
    for begun in filter(None, _BEGUN_CLASSES):
        begun.wait()


SPARK = "tests/spark/"
LIVES = "tests/simulation/"
SERVERS = ("tests/contract/", "tests/crash/test_races.py", "tests/crash/test_server_faults.py")
OWN_SESSIONS = tuple(
    f"{SPARK}test_{name}"
    for name in (
        *("cluster", "connect", "kafka", "pipelines", "published_", "spark_auto_registration"),
        *("standalone_cluster", "streaming_kills"),
    )
)
# Begun first, after what uses servers: files that start JVMs, install packages or run a browser.
LONG = (
    *(SPARK, "tests/test_", "tests/benchmarks/", "tests/unit/cli/test_demo.py"),
    *("tests/stream/test_page_in_browser.py", "tests/stream/test_publish_engines.py"),
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Start sessions and servers seldom: what uses one goes to one process, the rest by file.

    Slow Spark tests that share a session go to two processes: they are a third of the work. Lives
    of the simulation share nothing, and go to all.
    """
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(SERVERS):
                return "servers"
            slow, file = "slow" in config.option.markexpr, super()._split_scope(nodeid)
            if slow and file.startswith(LIVES):
                return f"{file}{crc32(nodeid.encode()) % 4}"
            if not file.startswith(SPARK) or (slow and file.startswith(OWN_SESSIONS)):
                return file
            return f"{SPARK}{crc32(file.encode()) % 2}" if slow else SPARK

    return Together(config, log) if config.option.dist == "loadfile" else None


# What a file says that has tests with a mark: the mark, or one of the lists that hold it.
SAYS = {"slow": re.compile("slow|FETCHES|KINDS|WHENS"), "smoke": re.compile("smoke")}
ALL_SLOW = re.compile(r"^pytestmark = .*(mark\.(slow|sweep|soak)|FETCHES)", re.MULTILINE)


@cache
def _says(path: Path, what: re.Pattern[str]) -> bool:
    return what.search(path.read_text()) is not None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file none of whose tests would run: imports take a minute of CPU in all."""
    if not collection_path.name.startswith("test_") or any("::" in given for given in config.args):
        return None
    wanted = config.option.markexpr
    if not wanted:
        return _says(collection_path, ALL_SLOW) or None
    return (wanted in SAYS and not _says(collection_path, SAYS[wanted])) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest units first; leave out slow tests unless named."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))
    items.sort(key=lambda item: not item.nodeid.startswith(SERVERS))
    if any("::" in given for given in config.args):
        return
    for item, (mark, says) in product(items, SAYS.items()):
        if item.get_closest_marker(mark) and not _says(item.path, says):
            raise pytest.UsageError(f"-m {mark} misses {item.nodeid}: its file does not say so")
    wanted = config.option.markexpr
    unasked = [mark for mark, names in ON_REQUEST.items() if not any(n in wanted for n in names)]
    left = {item for item in items if any(map(item.get_closest_marker, unasked))}
    config.hook.pytest_deselected(items=[*left])
    items[:] = [item for item in items if item not in left]
