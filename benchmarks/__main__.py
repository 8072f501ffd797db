"""The runner: list the workloads, run some, print their reports, keep them as JSON."""

import argparse
import os
import sys
from pathlib import Path

from benchmarks import workloads
from benchmarks.report import Report, machine
from benchmarks.workload import WORKLOADS, Settings

REPOSITORY = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Parse the arguments, run, print."""
    workloads.load()
    arguments = _parse()
    if not arguments.names:
        for name, workload in WORKLOADS.items():
            print(f"{name:<20} {workload.meaning}")
        return
    # Spark's workers import the package and the rivals from here, with this interpreter.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    for name in arguments.names:
        _run(name, arguments)


def _run(name: str, arguments: argparse.Namespace) -> None:
    workload = WORKLOADS[name]
    settings = Settings(
        rows=arguments.rows or (workload.tiny_rows if arguments.tiny else workload.rows),
        rounds=arguments.rounds or (1 if arguments.tiny else 5),
        folder=arguments.folder,
        tiny=arguments.tiny,
    )
    setup = machine(settings.folder) | {"rows": settings.rows, "rounds": settings.rounds_text}
    report = Report(name, workload.meaning, setup, workload.run(settings), workload.flatters)
    print(report.text())
    folder = arguments.json or RESULTS
    path = folder if folder.suffix == ".json" else folder / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report.json())
    print(f"\nresult: {path}", flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="none lists them")
    parser.add_argument("--rows", type=int, help="instead of the workload's own size")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (5)")
    parser.add_argument("--tiny", action="store_true", help="a size that only shows that it works")
    parser.add_argument("--json", type=Path, metavar="PATH", help="a .json file, or a folder")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("~/.cache/segstore-benchmarks").expanduser(),
        help="data sets and output, a few GB on a real disk (~/.cache/segstore-benchmarks)",
    )
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in WORKLOADS]:
        parser.error(f"no such workload: {', '.join(unknown)}")
    return arguments


if __name__ == "__main__":
    main()
