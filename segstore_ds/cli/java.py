"""Java for Spark: find one, say how to install one, fetch one on request."""

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

# Spark opens this module when it starts. Java 8 to 15 and trimmed runtimes lack it.
NEEDED_MODULE = "jdk.incubator.vector"
FETCHED_JAVA = "17"
_START_S = 60

# The first row named in the distribution's ID or ID_LIKE is used.
_LINUX = (
    ("amzn", "dnf install -y java-21-amazon-corretto-headless"),
    ("ubuntu", "apt-get install -y openjdk-17-jre-headless"),
    ("debian", "apt-get install -y default-jre-headless"),
    ("fedora", "dnf install -y java-21-openjdk-headless"),
    ("rhel", "dnf install -y java-21-openjdk-headless"),
    ("suse", "zypper install -y java-21-openjdk-headless"),
    ("arch", "pacman -S --noconfirm jre21-openjdk-headless"),
    ("alpine", "apk add openjdk17-jre-headless"),
)


def find_java(environment: Mapping[str, str], user_folder: Path) -> Path | None:
    """Return the first `java` that runs Spark: of JAVA_HOME, of the PATH, of what was fetched."""
    return next(filter(_runs_spark, _places(environment, user_folder)), None)


def fetch_java() -> str | None:
    """Download a Java into ~/.jdk, where `find_java` looks; returns why that failed, or None."""
    try:
        import jdk
    except ImportError:
        return "the package install-jdk is missing: pip install install-jdk"
    try:
        jdk.install(FETCHED_JAVA)
    except (jdk.JdkError, OSError) as error:
        return " ".join(str(error).split())
    return None


def install_command(system: str, release: Mapping[str, str], *, superuser: bool) -> str:
    """Return the command that installs a Java that runs Spark.

    `system` is what `platform.system()` returns; `release` holds the fields of /etc/os-release on
    Linux, as far as known. A `superuser` needs no sudo.
    """
    if system == "Darwin":
        return "brew install --cask temurin@17"
    if system == "Windows":
        return "winget install EclipseAdoptium.Temurin.17.JDK"
    family = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    sudo = "" if superuser else "sudo "
    for name, command in _LINUX:
        if name in family:
            update = f"{sudo}apt-get update && " if command.startswith("apt-get") else ""
            return f"{update}{sudo}{command}"
    return "install OpenJDK 17 or newer with the system's package manager"


def read_install_command() -> str:
    """Return `install_command` for this machine."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    superuser = hasattr(os, "geteuid") and os.geteuid() == 0
    return install_command(platform.system(), release, superuser=superuser)


def _places(environment: Mapping[str, str], user_folder: Path) -> Iterator[Path]:
    command = "java.exe" if os.name == "nt" else "java"
    if home := environment.get("JAVA_HOME"):
        yield Path(home, "bin", command)
    if found := shutil.which("java", path=environment.get("PATH", "")):
        yield Path(found)
    for folder in sorted((user_folder / ".jdk").glob("*")):
        yield folder / "bin" / command
        yield folder / "Contents" / "Home" / "bin" / command


def _runs_spark(command: Path) -> bool:
    try:
        done = subprocess.run(  # noqa: S603 - the user's own java
            [command, "--add-modules", NEEDED_MODULE, "-version"],
            capture_output=True,
            check=False,
            timeout=_START_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
