"""Distributed copies and compactions of which every process is killed: nothing, then all of it."""

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from sessions import running_group
from upkeep_driver import COPY_ID, ROWS, run

import segstore_ds as segstore

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
SCHEMA = pa.schema([("id", pa.int64())])
SEGMENTS = 8
START_LIMIT_S = 600.0
# A call, the path of its file, and how many such calls of that process pass before.
IN_A_TASK = {
    "copy": f"fsync /copy/segments/copy-{COPY_ID}/0+[3-7]- 0",
    "events": f"link /copy/segments/copy-{COPY_ID}/[3-7]0-[0-9]+-[^/]*json$ 0",
    "compact": "fsync /stream/segments/.*/1-[^/]*$ 0",
}
AT_THE_COMMIT = {
    "copy": "link /copy/log/0+$ 0",
    "events": "link /copy/log/0+$ 0",
    "compact": f"link /stream/log/0*{SEGMENTS + 1}$ 0",
}
CALLS = ("open", "write", "fsync", "link", "unlink", "mkdir", "replace")


class Job:
    """A stream, where its copy goes, and a driver that may be killed."""

    def __init__(self, folder: Path, verb: str) -> None:
        self.folder, self.verb = folder, verb
        self.source, self.target = f"file://{folder}/stream", f"file://{folder}/copy"
        self.stream = segstore.create(self.source, SCHEMA)
        layout = segstore.Layout(inline_bytes=0)
        for n in range(SEGMENTS):
            rows = list(range(ROWS * n, ROWS * (n + 1)))
            self.stream.append(pa.table({"id": rows}, SCHEMA), layout=layout)
        self.ids = list(range(ROWS * SEGMENTS))

    def killed_at(self, place: str) -> bool:
        """Run the job and kill all its processes when one stops at a place; False: it was done."""
        stopped, limit = self.folder / "stopped", time.monotonic() + START_LIMIT_S
        stopped.unlink(missing_ok=True)
        command = [HERE / "upkeep_driver.py", self.verb, self.source, self.target]
        with running_group(command, self.folder, STOP_AT=place, STOPPED=str(stopped)) as process:
            while not stopped.exists() and process.poll() is None:
                assert time.monotonic() < limit, (self.folder / "log").read_text()[-3000:]
                time.sleep(0.02)
        if stopped.exists():
            with suppress(ProcessLookupError):  # a worker may have ended with its JVM
                os.kill(int(stopped.read_text()), signal.SIGKILL)
        log = (self.folder / "log").read_text()
        assert stopped.exists() or process.returncode == 0, log[-3000:]
        return stopped.exists()

    def check_source(self) -> None:
        """Check that the stream is whole."""
        assert segstore.open(self.source).read().read_all()["id"].to_pylist() == self.ids
        segstore.open(self.source).verify().check()

    def finish(self, spark) -> None:
        """Run it again, and once more: the first does what is left, the second nothing."""
        self.stream.refresh().append(pa.table({"id": [-1]}, SCHEMA))
        self.ids.append(-1)
        run(spark, self.verb, self.source, self.target)
        url = self.source if self.verb == "compact" else self.target
        stream = segstore.open(url)
        assert stream.read().read_all()["id"].to_pylist() == self.ids[: stream.tail]
        assert stream.tail >= ROWS * SEGMENTS
        run(spark, self.verb, self.source, self.target)
        assert stream.refresh().version == segstore.open(url).version
        self.check_clean(stream)
        self.check_source()

    def check_clean(self, stream: segstore.Stream) -> None:
        """Check that vacuum leaves nothing that was written by who was killed."""
        for _ in range(2):  # what was staged on the newest version goes once it is not the newest
            stream.refresh().maintain(grace=0, short_grace=True)
        report = stream.refresh().verify()
        assert report.check().leftovers == []
        kept = stream.maintain(grace=86_400, dry_run=True).kept
        assert [entry.path for entry in kept if entry.dropped is None] == []


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("verb", "places"),
    [
        pytest.param("copy", IN_A_TASK, id="copy-in-a-task"),
        pytest.param("copy", AT_THE_COMMIT, id="copy-at-the-commit", marks=pytest.mark.sweep),
        pytest.param("events", IN_A_TASK, id="events-in-a-task"),
        pytest.param("events", AT_THE_COMMIT, id="events-at-the-commit", marks=pytest.mark.sweep),
        pytest.param("compact", AT_THE_COMMIT, id="compact-at-the-commit"),
    ],
)
def test_killed_job_leaves_the_old_state_and_is_finished(tmp_path, spark, verb, places):
    """Driver, JVM and workers die at once, within a task or between all tasks and the commit."""
    job = Job(tmp_path, verb)
    before = job.stream.refresh().version
    assert job.killed_at(places[verb])
    job.check_source()
    assert not segstore.exists(job.target)
    assert segstore.open(job.source).version == before
    staged = [*(tmp_path / ("stream" if verb == "compact" else "copy")).glob("segments/*/*")]
    assert len(staged) > (SEGMENTS if verb == "compact" else 0)
    job.finish(spark)


@pytest.mark.sweep
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("verb", ["copy", "events", "compact"])
def test_jobs_killed_anywhere_are_finished(tmp_path, spark, verb):
    """The long form: any call of any process, several times before it may finish."""
    chance = random.Random(int(os.environ.get("SEED", "1")))
    for number in range(int(os.environ.get("KILLS", "25"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        job = Job(folder, verb)
        places = [IN_A_TASK[verb]] if number == 0 else []
        for _ in range(2):
            call, passing = chance.choice(CALLS), chance.randint(0, 12)
            places.append(f"{call} /{number}/(stream|copy)/ {passing}")
        for place in places:
            if not job.killed_at(place):
                break
            job.check_source()
            if verb != "compact" and segstore.exists(job.target):
                ids = segstore.open(job.target).read().read_all()["id"].to_pylist()
                assert ids == job.ids, place
        job.finish(spark)
