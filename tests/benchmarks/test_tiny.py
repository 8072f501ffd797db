"""Every workload runs in a size that shows nothing but that it runs, so that none rots."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures_servers import FETCHES, fetch_or_skip
from object_servers import MINIO
from process_kit import spark_environment

pytestmark = FETCHES

REPOSITORY = Path(__file__).parents[2]
SPARK = ("bulk_append", "idle_minute")
# Each starts Spark and several queries: a minute and more.
LONG = (
    "segment_formats",
    "hybrid_scan",
    "bulk_scan",
    "copy_events",
    "task_memory",
    "micro_batches",
    "default_sink",
    "stream_source",
    "append_to_seen",
    "produced_to_readable",
    "far_costs",
)
# Run by hand: rivals that are fetched from elsewhere.
LEFT_OUT = ("spark_rivals", "kafka")
PLAIN = (
    "table_status",
    "table_status_rivals",
    "scale",
    "append_latency",
    "small_appends",
    "commit_rate",
    "find_by_key",
    "find_by_time",
    "lazy_scan",
    "follower_append",
    "following",
    "compaction",
    "copy_segments",
    "cache_local",
    "cache_overlap",
    "appender_events",
    "month_of_commits",
    "publish",
    "latest_by",
    "python_rivals",
    "append_frontier",
    "column_encodings",
)
# On a real S3 server, which the first run fetches.
SERVER = ("copy_between_stores", "lazy_scan_s3", "appended_to_followed", "fan_out", "far_appends")


def _benchmarks(*arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    environment = spark_environment(PYTHONPATH=str(REPOSITORY))
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The folder and the reports of all that need no Spark, run by one process."""
    return _run(tmp_path_factory.mktemp("plain"), *PLAIN)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The same of all that measure on a server."""
    fetch_or_skip(MINIO)
    return _run(tmp_path_factory.mktemp("served"), *SERVER)


def _run(folder, *names):
    text = _benchmarks(*names, "--tiny", "--folder", str(folder), "--json", str(folder / "found"))
    assert not list(folder.glob("run-*")), "scratch folders are removed"
    return folder / "found", dict(zip(names, text.split("\nresult: "), strict=False))


def _check(found, name):
    folder, texts = found
    text = texts[name]
    assert f"# {name}: " in text
    assert text.index("## Setup") < text.index("## Numbers") < text.index("## What flatters")
    report = json.loads((folder / f"{name}.json").read_text())
    assert report["workload"] == name
    assert report["setup"]["machine"]
    assert report["rows"]
    # A tiny stream's root holds all that there is to plan: no request is right.
    counts = {"arrow: requests to plan", "parquet: requests to plan"}
    assert all(ratio["value"] > 0 or ratio["name"] in counts for ratio in report["ratios"])


@pytest.mark.parametrize("name", PLAIN)
def test_workload_reports_setup_numbers_and_caveats(plain, name):
    _check(plain, name)


@pytest.mark.parametrize("name", SERVER)
def test_workload_on_a_server_reports_the_same(served, name):
    _check(served, name)


@pytest.mark.spark
@pytest.mark.parametrize(
    "name", [*SPARK, *(pytest.param(name, marks=pytest.mark.sweep) for name in LONG)]
)
def test_workload_of_spark_runs_and_reports_the_same(tmp_path, name):
    _check(_run(tmp_path, name), name)


def test_runner_without_a_name_lists_every_workload():
    listed = [line.split()[0] for line in _benchmarks().splitlines()]
    assert sorted(listed) == sorted((*PLAIN, *SERVER, *SPARK, *LONG, *LEFT_OUT))
