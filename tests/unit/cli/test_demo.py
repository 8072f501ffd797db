"""The demo, run as users run it: a child process, its environment not activated."""

import os
import shlex
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

import segstore_ds as segstore
from segstore_ds.cli import demo
from segstore_ds.cli.main import main

ROOT = Path(__file__).parents[3]
_NAMES = ("SPARK", "JAVA", "PYTHON")


_COMMAND = [sys.executable, "-m", "segstore_ds.cli.main", "demo"]


def child_environment(folder, **changes):
    """The machine's Java, unless `changes` say otherwise; nothing of Spark's or Python's."""
    kept = {name: v for name, v in os.environ.items() if not any(word in name for word in _NAMES)}
    if "JAVA_HOME" in os.environ:
        kept["JAVA_HOME"] = os.environ["JAVA_HOME"]
    return {**kept, "HOME": str(folder), "PYTHONPATH": str(ROOT), **changes}


def run_demo(folder, *options, **environment):
    """Run the demo without a terminal."""
    return subprocess.run(
        [*_COMMAND, *options],
        cwd=folder,
        env=child_environment(folder, **environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_java_that_cannot_be_fetched_and_no_place_for_a_picture_end_nothing(tmp_path):
    (tmp_path / "segstore-demo.html").mkdir()
    nowhere = "http://127.0.0.1:9"
    done = run_demo(tmp_path, "--install-jdk", PATH="", JAVA_HOME="", https_proxy=nowhere)
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = [line for line in done.stdout.splitlines() if "did not work" in line]
    assert "Connection refused" in line
    assert "end=27004, repeated=True" in done.stdout
    assert "No picture of the stream:" in done.stdout
    assert "segstore-demo.html can't be written: Is a directory" in done.stdout
    assert "    segstore demo --folder demo " in done.stdout
    assert "\nDone in" in done.stdout
    (only,) = tmp_path.iterdir()  # the stream itself was temporary
    assert only.name == "segstore-demo.html"


def test_without_java_the_part_with_spark_is_left_out_and_a_folder_stays(
    tmp_path, monkeypatch, capsys
):
    done = run_demo(tmp_path, "--folder", "kept", PATH="", JAVA_HOME="")
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        "Spark needs Java 17 or newer, and none in JAVA_HOME, on the PATH or in ~/.jdk will do."
        in done.stdout
    )
    assert "segstore demo --install-jdk" in done.stdout
    assert "end=27004, repeated=False" in done.stdout
    assert "end=27004, repeated=True" in done.stdout
    assert "1004 2013-01-02 13:00:00+00:00 DL 2395 LGA PBI 0" in done.stdout
    assert "without Spark" in done.stdout
    assert "B6" in done.stdout
    stream = segstore.open(tmp_path / "kept" / "flights")
    assert stream.verify().check().rows == 27_004
    picture = tmp_path / "kept" / "segstore-demo.html"
    assert str(picture) in done.stdout
    assert "    print(stream)\n\nCommit(" in done.stdout  # what is printed is what runs
    assert all(name in done.stdout for name in ("flights/log/_latest ", "-0.parquet "))
    assert "tail 27,004" in picture.read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    commands = done.stdout.split("Try next")[1].splitlines()[2:]
    assert 5 < len(commands) <= 10
    for line in commands:
        assert main(shlex.split(line)[1:]) == 0, line
    assert "no damage" in capsys.readouterr().out


def test_folder_with_something_in_it_is_refused(tmp_path):
    (tmp_path / "mine").write_text("precious")
    done = run_demo(tmp_path, "--folder", ".", PATH="", JAVA_HOME="")
    assert done.returncode == 2
    assert "the demo's folder is not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="the program is a shell script")
def test_spark_that_does_not_start_shows_why(tmp_path):
    command = tmp_path / "jdk" / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(
        "#!/bin/sh\n"
        'case "$*" in *-version) exit 0;; esac\n'
        "echo 'no memory for a heap' >&2\nexit 1\n"
    )
    command.chmod(0o755)
    done = run_demo(tmp_path, JAVA_HOME=str(tmp_path / "jdk"))
    assert done.returncode == 2
    assert "Spark's log ends with:" in done.stderr
    assert "no memory for a heap" in done.stderr


@pytest.mark.slow
@pytest.mark.smoke
@pytest.mark.spark
def test_with_spark_tells_everything_and_leaves_nothing(tmp_path):
    done = run_demo(tmp_path, "--folder", "kept")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.count("version=1 head=0 tail=27004") == 1
    assert "27004 events" in done.stdout
    assert "|  1004|2013-01-02 13:00:00|     DL|  2395|   LGA| PBI|        0|" in done.stdout
    assert "rows/s" not in done.stdout  # one run on a cold JVM measures nothing
    # Spark 4.0 leaves an empty folder of this name wherever it runs.
    assert {path.name for path in tmp_path.iterdir()} - {"artifacts"} == {"kept"}
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {
        "flights",
        "segstore-demo.html",
        "spark.log",
    }
    assert segstore.open(tmp_path / "kept" / "flights").verify().check().rows == 27_004


@pytest.mark.skipif(os.name == "nt", reason="programs are shell scripts")
def test_java_is_found_where_it_knows_the_module_that_spark_needs(tmp_path):
    """In JAVA_HOME first, then on the PATH, then where one was fetched before."""

    def make(folder, *, with_module=True):
        command = tmp_path / folder / "bin" / "java"
        command.parent.mkdir(parents=True)
        refuse = f'case "$*" in *{demo.NEEDED_MODULE}*) exit 1;; esac\n'
        command.write_text("#!/bin/sh\n" + ("" if with_module else refuse))
        command.chmod(0o755)
        return command

    home, other, old = make("home"), make("other"), make("8", with_module=False)
    on_path = {"PATH": str(other.parent)}
    for environment, found in (
        ({"JAVA_HOME": str(tmp_path / "home"), **on_path}, home),
        ({"JAVA_HOME": str(tmp_path / "8"), **on_path}, other),
        ({"JAVA_HOME": str(tmp_path), "PATH": ""}, None),
        ({"PATH": str(old.parent)}, None),
    ):
        assert demo.find_java(environment, tmp_path) == found
    for inside in ("jdk-17", "jdk-18/Contents/Home"):
        user = tmp_path / inside[:6]
        fetched = make(f"{user.name}/.jdk/{inside}")
        assert demo.find_java({"JAVA_HOME": "", "PATH": ""}, user) == fetched
        assert demo.find_java(on_path, user) == other


def test_recording_shows_what_the_demo_tells():
    """Otherwise record it again: `.ci/recording.py` says how."""
    recorded = unescape((ROOT / "segstore_ds/docs/demo.svg").read_text())
    for title, code in (*demo._IN_PYTHON, *demo._IN_SPARK):
        assert title in recorded
        assert all(line in recorded for line in code.splitlines())
