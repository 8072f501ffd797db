"""What somebody new waits for in a fresh clone: the installs, the demo, a picture, every page."""

import itertools
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.report import Ratio, Report, machine
from benchmarks.workload import Settings, Workload, folder_bytes

MEANING = "a fresh clone: installs, the demo, the first picture, and the code of every page"
FLATTERS = (
    "against us: every page's code starts a Python of its own, where a reader keeps one open",
    "for us: packages come from the nearest index, and pip has those of earlier runs in its cache",
)
ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```python( spark)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Their code goes on in one session of Spark, in this order.
SPARK_PAGES = ("README", "spark", "sql", "streaming", "copies", "recipes")
_MARK = 'import time; print("page", {page!r}, time.perf_counter(), flush=True)\n'
_STREAM = "import segstore_ds as s; s.create({url!r}, like={{'n': 1}}).append([{{'n': 1}}] * 1000)"


class _Newcomer:
    """A fresh clone, and what its commands took."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clone = folder, folder / "clone"
        self.rows: list[dict[str, object]] = []
        self.clean = {n: v for n, v in os.environ.items() if "SPARK" not in n and n != "PYTHONPATH"}
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(self.clone)], check=True)

    def run(self, command: str) -> str:
        """Run a line of a shell in the clone."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.clone,
            env=self.clean,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{command} failed:\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
        return done.stdout

    def step(self, name: str, *commands: str) -> float:
        """Time some commands, and keep what they took."""
        start = time.perf_counter()
        for command in commands:
            self.run(command)
        seconds = time.perf_counter() - start
        self.rows.append({"path": name, "commands": len(commands), "seconds": round(seconds, 1)})
        return seconds

    def write(self, name: str, code: str) -> Path:
        """Write a page's code, which puts its streams into a folder of its own."""
        path = self.folder / name
        path.with_suffix("").mkdir()
        path.write_text(code.replace("/tmp/", f"{path.with_suffix('')}/"))  # noqa: S108
        return path


def run(settings: Settings) -> Report:
    """Walk the paths one after the other."""
    with settings.scratch() as folder:
        new = _Newcomer(folder)
        python = f"{new.clone}/.venv/bin/python"
        core = new.step(
            "the core, without Spark",
            f"{sys.executable} -m venv {folder}/core",
            f"SEGSTORE_DISTRIBUTION=core {folder}/core/bin/pip install -q '.[cli]'",
        )
        size = folder_bytes(folder / "core" / "lib") / (1 << 20)
        url = str(folder / "stream")
        new.run(f'{folder}/core/bin/python -c "{_STREAM.format(url=url)}"')
        new.step("help", f"{folder}/core/bin/segstore --help")
        picture = new.step("a picture of a stream", f"{folder}/core/bin/segstore show {url}")
        lines = (new.clone / "README.md").read_text().splitlines()
        (demo,) = (line for line in lines if line.endswith("segstore demo"))
        new.step("README's first command: the whole, and its demo", demo)
        if not settings.tiny:
            new.run(f"{python} -m pip install -q '.[test]'")
            _pages(new, python)
        return Report(
            workload="newcomer",
            meaning=MEANING,
            setup=machine(settings.folder) | {"core, MiB": round(size)},
            rows=new.rows,
            ratios=[
                Ratio("seconds to install the core", core, 30, most=True),
                Ratio("MiB of the core", size, 200, most=True),
                Ratio("seconds to the first picture, core installed", picture, 60, most=True),
            ],
            flatters=FLATTERS,
        )


def _pages(new: _Newcomer, python: str) -> None:
    docs = new.clone / "segstore_ds" / "docs"
    texts = {"README": (new.clone / "README.md").read_text()}
    texts |= {page.stem: page.read_text() for page in sorted(docs.glob("*.md"))}
    for name, text in texts.items():
        codes = [code for kind, code in _BLOCK.findall(text) if not kind]
        files = [new.write(f"{name}-{place}.py", code) for place, code in enumerate(codes)]
        if files:
            new.step(f"{name}, Python", *(f"{python} {file}" for file in files))
    session = ""
    for name in SPARK_PAGES:
        session += _MARK.format(page=name)
        session += "\n".join(code for kind, code in _BLOCK.findall(texts[name]) if kind)
    said = new.run(f"{python} {new.write('session.py', session + _MARK.format(page='end'))}")
    marks = [line.split()[1:] for line in said.splitlines() if line.startswith("page ")]
    for (name, start), (_, end) in itertools.pairwise(marks):
        blocks = len([kind for kind, _ in _BLOCK.findall(texts[name]) if kind])
        seconds = round(float(end) - float(start), 1)
        new.rows.append({"path": f"{name}, Spark", "commands": blocks, "seconds": seconds})


WORKLOADS = {"newcomer": Workload(MEANING, run, 1, 1)}
