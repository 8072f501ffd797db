"""Benchmarks: named workloads on seeded data, rivals in the same run, one runner.

`python -m benchmarks` lists the workloads, `python -m benchmarks NAME ...` runs some. Storages that
delay, clocks and object store servers are those of the tests.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))
