"""Finding a Java: the programs here are shell scripts that answer as Javas do."""

import os
from pathlib import Path

import pytest

from segstore_ds.cli.demo import NEEDED_MODULE, find_java

pytestmark = pytest.mark.skipif(os.name == "nt", reason="programs are shell scripts")


def make_java(home: Path, *, with_module: bool = True) -> Path:
    """Make a Java that knows the module that Spark needs, or not, and return its program."""
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    refuse = f'case "$*" in *{NEEDED_MODULE}*) exit 1;; esac\n'
    command.write_text("#!/bin/sh\n" + ("" if with_module else refuse))
    command.chmod(0o755)
    return command


def test_java_home_comes_first(tmp_path):
    home, other = make_java(tmp_path / "home"), make_java(tmp_path / "other")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)}
    assert find_java(environment, tmp_path) == home


def test_java_home_that_is_too_old_is_skipped(tmp_path):
    make_java(tmp_path / "8", with_module=False)
    new = make_java(tmp_path / "17")
    environment = {"JAVA_HOME": str(tmp_path / "8"), "PATH": str(new.parent)}
    assert find_java(environment, tmp_path) == new


def test_java_without_sparks_module_is_skipped(tmp_path):
    trimmed = make_java(tmp_path / "trimmed", with_module=False)
    assert find_java({"PATH": str(trimmed.parent)}, tmp_path) is None


def test_java_home_that_holds_no_java_is_skipped(tmp_path):
    assert find_java({"JAVA_HOME": str(tmp_path), "PATH": ""}, tmp_path) is None


@pytest.mark.parametrize("inside", ["jdk-17", "jdk-17/Contents/Home"])
def test_java_that_was_fetched_before_is_found_last(inside, tmp_path):
    fetched = make_java(tmp_path / ".jdk" / inside)
    assert find_java({"JAVA_HOME": "", "PATH": ""}, tmp_path) == fetched
    other = make_java(tmp_path / "other")
    assert find_java({"PATH": str(other.parent)}, tmp_path) == other
