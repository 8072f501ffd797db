"""The console script `segstore`."""

import argparse
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import segstore_ds as segstore
from segstore_ds.cli.demo import run_demo
from segstore_ds.cli.story import with_unit
from segstore_ds.errors import SegstoreError
from segstore_ds.storage import open_storage
from segstore_ds.stream.rescue import verify_on

DAMAGED, FAILED, INTERRUPTED = 1, 2, 130
SHOWN_WRITERS = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0, 1 for a damaged stream, 2 for a failure."""
    for out in (sys.stdout, sys.stderr):
        if isinstance(out, io.TextIOWrapper):
            out.reconfigure(errors="backslashreplace")  # names may hold unprintable characters
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except SegstoreError as error:
        print(f"segstore: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output is gone; flushing at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:  # noqa: BLE001 - the outermost line of the command
        print(f"segstore: {type(error).__name__}: {error}", file=sys.stderr)
        return FAILED
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="segstore", description="Append-only event streams next to Spark."
    )
    parser.add_argument("--version", action="version", version=segstore.__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="show what segstore does, in under a minute")
    demo.add_argument("--folder", type=Path, help="keep the streams here; must be empty or missing")
    demo.add_argument(
        "--install-jdk", action="store_true", help="fetch a Java into ~/.jdk if none will do"
    )
    demo.set_defaults(run=_demo)

    for name, run, meaning in (
        ("info", _info, "say what a stream holds"),
        ("maintain", _maintain, "forget old versions, and delete what nothing needs any more"),
        ("retain", _retain, "drop the oldest events, as far as readers and tags allow"),
        ("verify", _verify, "read a whole stream and say what is wrong where; status 1 for damage"),
    ):
        command = commands.add_parser(name, help=meaning)
        command.add_argument("url", help="the stream: a folder, s3://..., gs://..., abfs://...")
        command.add_argument(
            "--storage-options", type=_json, help="JSON for the filesystem; env:NAME values allowed"
        )
        command.set_defaults(run=run)
        if run is _retain:
            _add_bounds(command)
    return parser


def _add_bounds(command: argparse.ArgumentParser) -> None:
    for name, meaning in (
        ("max-bytes", "drop the oldest segments while the rest is larger, such as 10g"),
        ("max-age", "drop events that were committed longer ago, such as 7d"),
        ("min-bytes", "keep at least so much"),
        ("min-age", "keep events that were committed within that time"),
    ):
        command.add_argument(f"--{name}", help=meaning)
    command.add_argument(
        "--ignore-readers",
        action="store_true",
        help="also drop what tags and live readers need; without --max-bytes and --max-age what "
        "all live readers are done with is dropped",
    )


def _demo(options: argparse.Namespace) -> int:
    return run_demo(options.folder, install_jdk=options.install_jdk)


def _open(options: argparse.Namespace) -> segstore.Stream:
    # Nothing is written, so any filesystem will do.
    storage_options = options.storage_options
    return segstore.open(options.url, storage_options=storage_options, single_writer=True)


def _info(options: argparse.Namespace) -> int:
    stream = _open(options)
    known, writers = stream.info(), stream.metadata("writers").read_all().to_pylist()
    named = [
        f"{writer['writer_id']} (batch {writer['batch_id']})" for writer in writers[:SHOWN_WRITERS]
    ]
    if len(writers) > len(named):
        named.append(f"and {len(writers) - len(named):,} more")
    facts = {
        "stream": stream.url,
        "id": stream.stream_id,
        "version": f"{stream.version} ({stream.root.operation})",
        "events": f"{stream.tail - stream.head:,}, offsets [{stream.head}, {stream.tail})",
        "segments": f"{known['segments']:,}, {with_unit(known['bytes'])}",
        "writers": ", ".join(named),
        "sealed": "yes" if stream.sealed else "",
    }
    for name, fact in facts.items():
        if fact:
            print(f"{name:9} {fact}")
    for column in stream.schema:
        print(f"{'column':9} {column.name}: {column.type}")
    return 0


def _maintain(options: argparse.Namespace) -> int:
    stream = segstore.open(options.url, storage_options=options.storage_options)
    print(stream.maintain())
    return 0


def _retain(options: argparse.Namespace) -> int:
    stream = segstore.open(options.url, storage_options=options.storage_options)
    done = stream.retain(
        max_bytes=options.max_bytes,
        max_age=options.max_age,
        min_bytes=options.min_bytes,
        min_age=options.min_age,
        respect_readers=not options.ignore_readers,
    )
    print(done)
    return 0


def _verify(options: argparse.Namespace) -> int:
    storage = open_storage(options.url, options.storage_options, single_writer=True)
    report = verify_on(storage)
    print(
        f"verified {report.versions:,} versions, {report.segments:,} segments, "
        f"{report.frames:,} frames, {report.rows:,} events"
    )
    for path in report.leftovers:
        unclaimed = path in report.unclaimed
        kind = "staged, or of a commit that is gone" if unclaimed else "leftover, no damage"
        print(f"{kind}: {path}")
    for problem in report.problems:
        print(f"WRONG {problem.where}: {problem.what}")
    print("sound" if report.ok else f"damaged: {len(report.problems)} problems")
    return 0 if report.ok else DAMAGED


def _json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        # The message leaves the text out: it may hold a secret.
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value


if __name__ == "__main__":
    sys.exit(main())
