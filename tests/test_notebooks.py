"""The notebooks of the documentation: they run from top to bottom, and print what they show."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from process_kit import spark_environment

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "segstore_ds/docs").glob("*.ipynb"))
# Runs the cells in one namespace, as a notebook does, and keeps what each printed.
_RUNNER = """
import contextlib, io, json, sys
printed, names = [], {"__name__": "__main__"}
for code in json.load(open(sys.argv[1])):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        exec(compile(code, "a cell", "exec"), names)
    printed.append(text.getvalue())
json.dump(printed, open(sys.argv[1], "w"))
"""


def cells(notebook: Path) -> list[dict]:
    found = json.loads(notebook.read_text())["cells"]
    return [cell for cell in found if cell["cell_type"] == "code"]


def printed_by(cell: dict) -> str:
    return "".join(
        text for each in cell["outputs"] if each["output_type"] == "stream" for text in each["text"]
    )


def test_there_are_three():
    assert [notebook.stem for notebook in NOTEBOOKS] == ["clicks", "flights", "operator"]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_notebook_prints_what_it_shows(notebook, tmp_path):
    codes = tmp_path / "codes.json"
    codes.write_text(json.dumps(["".join(cell["source"]) for cell in cells(notebook)]))
    folder = tmp_path / "folder"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _RUNNER, str(codes)],
        cwd=folder,
        env=spark_environment(PYTHONPATH=str(ROOT), MPLBACKEND="agg", TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not [*folder.iterdir()]  # so that a second run is like the first
    printed = json.loads(codes.read_text())
    assert printed == [printed_by(cell) for cell in cells(notebook)]
