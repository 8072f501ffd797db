"""Benchmarks: named workloads on seeded data, rivals in the same run, one runner.

`python -m benchmarks` lists the workloads, `python -m benchmarks NAME ...` runs some.
"""
