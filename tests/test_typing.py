"""What a type checker of somebody else's project knows of ours."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SAMPLE = Path(__file__).with_name("typed_use.py")
# Of a user: strict, without our own settings, with what types the libraries have.
CONFIG = """
[mypy]
strict = True
[mypy-segstore_ds.*]
follow_imports = silent
[mypy-pyarrow.*,pandas.*,fsspec.*]
ignore_missing_imports = True
"""


def test_mypy_finds_the_errors_of_the_sample_and_no_others(tmp_path: Path) -> None:
    config = tmp_path / "mypy.ini"
    config.write_text(CONFIG)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(config), str(SAMPLE)],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.findall(r"typed_use\.py:(\d+): error: .*\[([a-z-]+)\]", done.stdout)
    expected = [
        (str(number), code)
        for number, line in enumerate(SAMPLE.read_text().splitlines(), 1)
        for code in re.findall(r"# error: ([a-z-]+)", line)
    ]
    assert found == expected, done.stdout + done.stderr
