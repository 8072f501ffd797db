"""Histories of lives are linearizable, says porcupine, a checker that is not ours."""

import json
import logging
import shutil
import subprocess
from pathlib import Path

import pytest
from simulation import Life

CHECKER = Path(__file__).parent / "linearizability"
CAST = ("append-1", "append-2", "write-1", "write-2", "read-1", "read-2", "job", "keep")

SEEDS = range(405, 409)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("go") is None, reason="needs Go"),
]


def go(*command: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["go", *command],
        cwd=CHECKER,
        input=given,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_histories_of_lives_are_linearizable():
    """Appends, overwrites and reads of ranges; the last history is spoiled, and is noticed."""
    if (fetched := go("mod", "download")).returncode:
        pytest.skip(f"porcupine can't be fetched: {fetched.stderr[-200:]}")
    logging.disable(logging.CRITICAL)
    histories = []
    for seed in SEEDS:
        life = Life(seed, hours=4, cast=(*CAST, "overwrite", "truncate"))
        life.run()
        histories.append(life.ledger.history())
    assert sum(map(len, histories)) > 300
    looks = [each for each in histories[0] if each["kind"] == "look"]
    before = {**looks[0], "call": looks[-1]["call"], "return": looks[-1]["return"]}
    histories.append([before if each is looks[-1] else each for each in histories[0]])
    checked = go("run", ".", given="\n".join(map(json.dumps, histories)))
    assert checked.stdout.split() == ["Ok"] * len(SEEDS) + ["Illegal"], checked.stderr
