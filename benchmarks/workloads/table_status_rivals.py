"""The list of files at 10^3 to 10^5: segstore beside delta-rs and pyiceberg, metadata alone.

No data file is written anywhere: each library commits entries of made-up files by its own API, so
that what is measured is its list of files. A library that is not installed is left out.
"""

import importlib.util
import json
import random
import statistics
import time
from abc import ABC, abstractmethod
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import segstore_ds as segstore
from benchmarks.datasets import EVENTS
from benchmarks.report import Ratio, Report, machine
from benchmarks.workload import Settings, Workload, quantile
from benchmarks.workloads.table_status import commit_entries, fill
from segstore_ds.storage import open_storage
from segstore_ds.stream import open_on

MEANING = "the list of files at 10^3 to 10^5 files, beside delta-rs and pyiceberg (rows: most)"
FLATTERS = (
    "entries have no statistics of columns, which all three usually write with each file",
    "to open means to open anew and to list all files; ours lists them as columns",
    "bytes of delta-rs are those of the commit that filled the table and of its checkpoint",
    "against us: the rivals' tables are filled by one commit, ours has the parts of many",
    "against us: each of our commits is synced to disk",
    "pyiceberg's catalog is a SQLite file on the same disk",
)


class Listing(ABC):
    """A library's list of files, in a folder."""

    name: ClassVar[str]
    package: ClassVar[str]

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self.size = size
        self.chance = random.Random(5)

    @abstractmethod
    def fill(self) -> None:
        """Make a table of so many files."""

    @abstractmethod
    def append(self) -> None:
        """Commit one file more."""

    @abstractmethod
    def open(self) -> int:
        """Open the table anew and return how many files it lists."""

    def metadata_bytes(self) -> int:
        """Return what lies in the folder, all of which is metadata."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


class _Segstore(Listing):
    name, package = "segstore", "segstore-ds"

    def fill(self) -> None:
        segstore.create(self.folder, EVENTS)
        fill(open_storage(self.folder), self.size)
        self._stream = open_on(open_storage(self.folder))

    def append(self) -> None:
        commit_entries(self._stream, 1, self.chance)

    def open(self) -> int:
        stream = segstore.open(self.folder)
        tasks = stream.plan_tasks(stream.plan_read())
        return sum(len(task.slices) for task in tasks)


class _Delta(Listing):
    name, package = "delta-rs", "deltalake"

    def fill(self) -> None:
        from deltalake import DeltaTable

        self._table = DeltaTable.create(str(self.folder), schema=EVENTS)
        self._commit(self.size)
        self._table.create_checkpoint()

    def append(self) -> None:
        self._commit(1)

    def open(self) -> int:
        from deltalake import DeltaTable

        return len(DeltaTable(str(self.folder)).file_uris())

    def _commit(self, files: int) -> None:
        from deltalake.transaction import AddAction

        now = int(time.time() * 1000)
        actions = [
            AddAction(
                path=f"part-00000-{self.chance.getrandbits(128):032x}-c000.zstd.parquet",
                size=self.chance.randrange(36_000, 44_000),
                partition_values={},
                modification_time=now,
                data_change=True,
                stats=json.dumps({"numRecords": self.chance.randrange(900, 1100)}),
            )
            for _ in range(files)
        ]
        self._table.create_write_transaction(actions, "append", EVENTS)


class _Iceberg(Listing):
    name, package = "pyiceberg", "pyiceberg"

    def fill(self) -> None:
        self.folder.mkdir(parents=True)
        table = self._catalog()
        table.create_namespace("bench")
        self._table = table.create_table("bench.events", schema=EVENTS)
        self._commit(self.size)

    def append(self) -> None:
        self._commit(1)

    def open(self) -> int:
        return sum(1 for _ in self._catalog().load_table("bench.events").scan().plan_files())

    def _catalog(self) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog

        place = {"uri": f"sqlite:///{self.folder}/catalog.db", "warehouse": f"file://{self.folder}"}
        return SqlCatalog("bench", **place)

    def _commit(self, files: int) -> None:
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        with self._table.transaction() as change, change.update_snapshot().fast_append() as made:
            for _ in range(files):
                name = f"00000-0-{self.chance.getrandbits(128):032x}.parquet"
                made.append_data_file(
                    DataFile.from_args(
                        content=DataFileContent.DATA,
                        file_path=f"file://{self.folder}/data/{name}",
                        file_format=FileFormat.PARQUET,
                        partition=Record(),
                        record_count=self.chance.randrange(900, 1100),
                        file_size_in_bytes=self.chance.randrange(36_000, 44_000),
                        spec_id=0,
                    )
                )


def run(settings: Settings) -> Report:
    """Measure every library that is there at every size, one after another."""
    kinds = [kind for kind in (_Segstore, _Delta, _Iceberg) if _installed(kind)]
    absent = [kind.package for kind in (_Delta, _Iceberg) if kind not in kinds]
    sizes = [size for size in (10**3, 10**4, 10**5) if size <= settings.rows]
    commits = 5 if settings.tiny else 40
    rows = []
    with settings.scratch() as scratch:
        for size in sizes:
            rows += [
                _measure(kind(scratch / f"{kind.name}-{size}", size), commits) for kind in kinds
            ]
    largest = {row["library"]: row for row in rows if row["files"] == sizes[-1]}
    ours = largest.pop(_Segstore.name)
    return Report(
        workload="table_status_rivals",
        meaning=MEANING,
        setup=machine(settings.folder)
        | {kind.package: version(kind.package) for kind in kinds}
        | {"commits": f"{commits} of one file each", "not installed": ", ".join(absent) or "none"},
        rows=rows,
        ratios=[
            Ratio(f"{what}, {name} / segstore", row[field] / ours[field])
            for name, row in largest.items()
            for what, field in (
                ("commit", "commit ms"),
                ("open and list", "open ms"),
                ("bytes per file", "bytes/file"),
            )
        ],
        flatters=FLATTERS,
    )


def _installed(kind: type[Listing]) -> bool:
    return kind is _Segstore or importlib.util.find_spec(kind.package) is not None


def pyiceberg_table(folder: Path, size: int) -> Listing | None:
    """Return a table of pyiceberg's own, not yet filled; None where that is not installed."""
    return _Iceberg(folder, size) if _installed(_Iceberg) else None


def _measure(listing: Listing, commits: int) -> dict[str, Any]:
    listing.fill()
    filled = listing.metadata_bytes()
    seconds = []
    for _ in range(commits):
        began = time.perf_counter()
        listing.append()
        seconds.append(time.perf_counter() - began)
    opened = []
    for _ in range(3):
        began = time.perf_counter()
        found = listing.open()
        opened.append(time.perf_counter() - began)
        assert abs(found - listing.size - commits) < 100, found
    grown = listing.metadata_bytes() - filled
    return {
        "files": listing.size,
        "library": listing.name,
        "commit ms": round(statistics.median(seconds) * 1e3, 2),
        "p99 ms": round(quantile(seconds, 0.99) * 1e3, 2),
        "open ms": round(min(opened) * 1e3, 1),
        "bytes/file": round(filled / listing.size, 1),
        "bytes/commit": round(grown / commits),
    }


WORKLOADS = {"table_status_rivals": Workload(MEANING, run, 10**5, 1000)}
