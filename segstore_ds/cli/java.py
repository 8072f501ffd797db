"""Java for Spark: find a suitable one, say how to install one, and fetch one on request."""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

LEAST_JAVA = 17
FETCHED_JAVA = "17"
# Spark opens this module when it starts; trimmed runtimes lack it.
NEEDED_MODULE = "jdk.incubator.vector"
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_START_S = 60

# The first row named in the distribution's ID or ID_LIKE is used; % stands for sudo.
_LINUX = (
    ("amzn", "%dnf install -y java-21-amazon-corretto-headless"),
    ("ubuntu", "%apt-get update && %apt-get install -y openjdk-17-jre-headless"),
    ("debian", "%apt-get update && %apt-get install -y openjdk-17-jre-headless"),
    ("fedora", "%dnf install -y java-21-openjdk-headless"),
    ("rhel", "%dnf install -y java-21-openjdk-headless"),
    ("suse", "%zypper install -y java-21-openjdk-headless"),
    ("arch", "%pacman -S --noconfirm jre21-openjdk-headless"),
    ("alpine", "%apk add openjdk17-jre-headless"),
)


@dataclass(frozen=True, slots=True)
class JavaSearch:
    """What a search for Java found.

    Attributes:
        home: The value of JAVA_HOME that Spark needs; None if `on_path` or if nothing is suitable.
        on_path: The Java on the PATH is suitable.
        looked: One line for each place that is not suitable: where, and why.
    """

    home: Path | None
    on_path: bool
    looked: tuple[str, ...]

    @property
    def found(self) -> bool:
        """True if there is a suitable Java."""
        return self.on_path or self.home is not None

    def apply(self, environment: MutableMapping[str, str]) -> None:
        """Make Spark use what was found: Spark tries JAVA_HOME first, then the PATH."""
        if self.home is not None:
            environment["JAVA_HOME"] = str(self.home)
        elif self.on_path:
            environment.pop("JAVA_HOME", None)


def search_java(environment: Mapping[str, str], *, user_folder: Path) -> JavaSearch:
    """Look for a Java that runs Spark: JAVA_HOME, the PATH, then what was fetched before."""
    looked = []
    home = environment.get("JAVA_HOME")
    if not home:
        looked.append("JAVA_HOME is not set")
    elif problem := _problem(_command_of(Path(home))):
        looked.append(f"JAVA_HOME={home} {problem}")
    else:
        return JavaSearch(Path(home), on_path=False, looked=())
    command = shutil.which("java", path=environment.get("PATH", ""))
    if command is None:
        looked.append("there is no java on the PATH")
    elif problem := _problem(Path(command)):
        looked.append(f"{command} on the PATH {problem}")
    else:
        return JavaSearch(None, on_path=True, looked=tuple(looked))
    for folder in sorted((user_folder / ".jdk").glob("*")):
        for candidate in (folder, folder / "Contents" / "Home"):
            if _problem(_command_of(candidate)) is None:
                return JavaSearch(candidate, on_path=False, looked=tuple(looked))
    return JavaSearch(None, on_path=False, looked=tuple(looked))


def parse_java_version(banner: str) -> int | None:
    """Return the major version that `java -version` printed; None if it printed none.

    >>> parse_java_version('openjdk version "17.0.15" 2025-04-15')
    17
    >>> parse_java_version('java version "1.8.0_292"')
    8
    """
    match = _VERSION.search(banner)
    if match is None:
        return None
    major = int(match[1])
    return int(match[2] or 0) if major == 1 else major


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
            newer = name == "debian" and not _has_java_17(release)
            fitting = command.replace("-17-", "-21-") if newer else command
            return fitting.replace("%", sudo)
    return "install OpenJDK 17 or newer with the system's package manager"


def read_install_command() -> str:
    """Return `install_command` for this machine."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    superuser = hasattr(os, "geteuid") and os.geteuid() == 0
    return install_command(platform.system(), release, superuser=superuser)


def fetch_java() -> tuple[Path | None, str]:
    """Download a Java into ~/.jdk with the package install-jdk.

    It returns the JAVA_HOME, or None and one line that says why it failed.
    """
    try:
        import jdk
    except ImportError:
        return None, "the package install-jdk is missing: pip install install-jdk"
    try:
        folder = Path(jdk.install(FETCHED_JAVA))
    except (jdk.JdkError, OSError) as error:
        return None, " ".join(str(error).split())
    for home in (folder, folder / "Contents" / "Home"):
        if _problem(_command_of(home)) is None:
            return home, ""
    return None, f"what was fetched into {folder} does not run"


def _has_java_17(release: Mapping[str, str]) -> bool:
    """Tell whether a Debian has Java 17: up to release 12; testing and sid name no release."""
    return release.get("ID") != "debian" or release.get("VERSION_ID", "") in ("11", "12")


def _command_of(home: Path) -> Path:
    return home / "bin" / ("java.exe" if os.name == "nt" else "java")


def _problem(command: Path) -> str | None:
    """Return why a Java is not suitable; None if it is."""
    if not command.is_file():
        return f"holds no bin/{command.name}"
    version = parse_java_version(_output(command, "-version")[1])
    if version is None:
        return "does not start"
    if version < LEAST_JAVA:
        return f"is Java {version}"
    if _output(command, "--add-modules", NEEDED_MODULE, "-version")[0] != 0:
        return f"is Java {version} without the module {NEEDED_MODULE}"
    return None


def _output(command: Path, *arguments: str) -> tuple[int, str]:
    try:
        done = subprocess.run(  # noqa: S603 - the user's own java
            [command, *arguments], capture_output=True, text=True, check=False, timeout=_START_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return -1, ""
    return done.returncode, done.stderr + done.stdout
