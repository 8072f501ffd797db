"""Java for Spark: find one, fetch one on request."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

# Spark opens this module when it starts. Java 8 to 15 and trimmed runtimes lack it.
NEEDED_MODULE = "jdk.incubator.vector"
_START_S = 60


def find_java(environment: Mapping[str, str], user_folder: Path) -> Path | None:
    """Return the first `java` that runs Spark: of JAVA_HOME, of the PATH, of what was fetched."""
    return next(filter(_runs_spark, _places(environment, user_folder)), None)


def fetch_java() -> str | None:
    """Download a Java into ~/.jdk, where `find_java` looks; returns why that failed, or None."""
    try:
        import jdk

        jdk.install("17")
    except ImportError:
        return "the package install-jdk is missing: pip install install-jdk"
    except (jdk.JdkError, OSError) as error:
        return " ".join(str(error).split())
    return None


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
    line: list[str | Path] = [command, "--add-modules", NEEDED_MODULE, "-version"]
    try:
        done = subprocess.run(line, capture_output=True, check=False, timeout=_START_S)  # noqa: S603 - the user's own java
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
