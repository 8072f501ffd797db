"""The command as a process: pipes, Ctrl-C, a reader that goes away, the page's commands."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.cli import BROKEN_PIPE, INTERRUPTED

PAGES = Path(__file__).parents[3] / "segstore_ds/docs"
COMMAND = [sys.executable, "-m", "segstore_ds.cli.main"]
EVENTS = pa.table({"n": [1, 2, 3]})
pytestmark = pytest.mark.slow


@pytest.fixture
def stream(tmp_path):
    made = segstore.create(tmp_path / "clicks", EVENTS.schema, upkeep=None)
    made.append(EVENTS)
    return made


def test_cat_follows_until_it_is_interrupted(stream):
    line = [*COMMAND, "cat", stream.url, "-f", "-n", "-1", "--json"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as cat:
        assert json.loads(cat.stdout.readline()) == {"n": 3}
        for n in (4, 5):
            stream.append(pa.table({"n": [n]}))
            assert json.loads(cat.stdout.readline()) == {"n": n}
        cat.send_signal(signal.SIGINT)
        assert cat.wait(300) == INTERRUPTED


@pytest.mark.parametrize("line", [["cat"], ["export", "--format", "json"]], ids=" ".join)
def test_reader_that_goes_away_ends_the_command_quietly(stream, line):
    stream.append(pa.table({"n": range(100_000)}))
    line = [*COMMAND, line[0], stream.url, *line[1:]]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as cat:
        assert b"n" in cat.stdout.readline()
        cat.stdout.close()
        assert cat.wait(300) == BROKEN_PIPE
        assert cat.stderr.read() == b""


def test_reader_that_was_never_there_ends_the_command_quietly(stream):
    """Also if all that is printed fits into one buffer, which is written at the end."""
    reads, writes = os.pipe()
    os.close(reads)
    with subprocess.Popen(
        [*COMMAND, "info", stream.url], stdout=writes, stderr=subprocess.PIPE
    ) as command:
        os.close(writes)
        assert command.wait(300) == BROKEN_PIPE
        assert command.stderr.read() == b""


def run_page(page, folder):
    """Run a page's first commands as a shell runs them, in one go, and return the lines."""
    text = (PAGES / f"{page}.md").read_text()
    (block,) = re.findall(r"```sh\n(segstore create.*?)```", text, re.DOTALL)
    program = folder / "segstore"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m segstore_ds.cli.main "$@"\n')
    program.chmod(0o755)
    script = "set -e\n" + block.replace("/tmp/", f"{folder}/")  # noqa: S108 - of the page
    done = subprocess.run(
        ["sh", "-c", script],
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_commands_of_the_page_run(tmp_path):
    assert '{"user": "bob", "n": 2}' in run_page("command_line", tmp_path)
    left = {
        path.name for path in tmp_path.rglob("*") if path.is_file() if path.parent.name != "log"
    }
    assert left == {"segstore", "visits.parquet"}


def test_commands_of_the_first_page_run(tmp_path):
    lines = run_page("start", tmp_path)
    assert any("bob" in line for line in lines)
    assert "# Python" in lines
