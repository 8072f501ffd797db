"""Finding a Java: the programs here are shell scripts that answer as Javas do."""

import os
from pathlib import Path

import pytest

from segstore_ds.cli.java import NEEDED_MODULE, install_command, parse_java_version, search_java

pytestmark = pytest.mark.skipif(os.name == "nt", reason="programs are shell scripts")


def make_java(home: Path, banner: str, *, with_module: bool = True) -> Path:
    """Make a Java that prints a banner and knows the module that Spark needs, or not."""
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    refuse = "" if with_module else f'case "$*" in *{NEEDED_MODULE}*) exit 1;; esac\n'
    command.write_text(f"#!/bin/sh\n{refuse}echo '{banner}' >&2\n")
    command.chmod(0o755)
    return home


OPENJDK_17 = 'openjdk version "17.0.15" 2025-04-15'
ORACLE_8 = 'java version "1.8.0_292"'


@pytest.mark.parametrize(
    ("banner", "major"),
    [
        (OPENJDK_17, 17),
        (ORACLE_8, 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "11.0.2" 2019-01-15', 11),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
        ("", None),
    ],
)
def test_version_is_the_major_one(banner, major):
    assert parse_java_version(banner) == major


def test_java_home_comes_first(tmp_path):
    home, other = (make_java(tmp_path / name, OPENJDK_17) for name in ("home", "other"))
    environment = {"JAVA_HOME": str(home), "PATH": str(other / "bin")}
    search = search_java(environment, user_folder=tmp_path)
    assert (search.home, search.found) == (home, True)


def test_java_home_that_is_too_old_gives_way_to_the_path(tmp_path):
    old, new = make_java(tmp_path / "8", ORACLE_8), make_java(tmp_path / "17", OPENJDK_17)
    environment = {"JAVA_HOME": str(old), "PATH": str(new / "bin")}
    search = search_java(environment, user_folder=tmp_path)
    assert search.on_path
    assert search.looked == (f"JAVA_HOME={old} is Java 8",)
    search.apply(environment)
    assert "JAVA_HOME" not in environment


def test_java_without_sparks_module_is_refused(tmp_path):
    home = make_java(tmp_path / "trimmed", OPENJDK_17, with_module=False)
    search = search_java({"PATH": str(home / "bin")}, user_folder=tmp_path)
    assert not search.found
    assert search.looked[1].endswith(f"is Java 17 without the module {NEEDED_MODULE}")


def test_java_that_does_not_start_is_refused(tmp_path):
    home = make_java(tmp_path / "broken", "Unable to locate a Java Runtime.")
    search = search_java({"JAVA_HOME": str(home)}, user_folder=tmp_path)
    assert not search.found
    assert search.looked[0].endswith("does not start")


@pytest.mark.parametrize("inside", ["jdk-17", "jdk-17/Contents/Home"])
def test_java_that_was_fetched_before_is_found_last(inside, tmp_path):
    home = make_java(tmp_path / ".jdk" / inside, OPENJDK_17)
    search = search_java({"JAVA_HOME": "", "PATH": ""}, user_folder=tmp_path)
    assert search.home == home
    environment = {}
    search.apply(environment)
    assert environment == {"JAVA_HOME": str(home)}


def test_nothing_found_names_every_place(tmp_path):
    search = search_java({"JAVA_HOME": str(tmp_path), "PATH": ""}, user_folder=tmp_path)
    assert not search.found
    assert search.looked == (
        f"JAVA_HOME={tmp_path} holds no bin/java",
        "there is no java on the PATH",
    )


@pytest.mark.parametrize(
    ("system", "release", "command"),
    [
        ("Darwin", {}, "brew install --cask temurin@17"),
        ("Windows", {}, "winget install EclipseAdoptium.Temurin.17.JDK"),
        (
            "Linux",
            {"ID": "debian", "VERSION_ID": "12"},
            "sudo apt-get update && sudo apt-get install -y openjdk-17-jre-headless",
        ),
        (
            "Linux",
            {"ID": "debian", "VERSION_ID": "13"},
            "sudo apt-get update && sudo apt-get install -y openjdk-21-jre-headless",
        ),
        (
            "Linux",
            {"ID": "linuxmint", "ID_LIKE": "ubuntu debian"},
            "sudo apt-get update && sudo apt-get install -y openjdk-17-jre-headless",
        ),
        ("Linux", {"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, "sudo dnf install -y java-21"),
        ("Linux", {"ID": "amzn", "ID_LIKE": "fedora"}, "sudo dnf install -y java-21-amazon"),
        ("Linux", {"ID": "nixos"}, "install OpenJDK 17 or newer"),
        ("FreeBSD", {}, "install OpenJDK 17 or newer"),
    ],
)
def test_install_command_is_the_systems(system, release, command):
    assert install_command(system, release, superuser=False).startswith(command)


def test_superuser_needs_no_sudo():
    assert "sudo" not in install_command("Linux", {"ID": "ubuntu"}, superuser=True)
