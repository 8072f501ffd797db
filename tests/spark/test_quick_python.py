"""The Python that Spark's processes are forked from, in tests, outlives each of them."""

import random
import subprocess
import time

import pytest

pytestmark = pytest.mark.slow


def test_programs_that_are_killed_at_any_moment_do_no_harm(worker_python: str) -> None:
    chance, command = random.Random(1), [worker_python, "-m", "this"]
    for _ in range(60):
        running = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(3)]
        time.sleep(chance.uniform(0.0, 0.06))
        for program in running:
            program.kill()
        for program in running:
            program.wait()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Zen of Python" in done.stdout
