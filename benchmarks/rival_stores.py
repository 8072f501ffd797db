"""The same few calls on segstore and on what pip brings of its rivals, without Spark.

Each library is imported only where it is used: those that are not installed are left out.
"""

import importlib.util
import json
import random
import time
from abc import ABC, abstractmethod
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

import segstore_ds as segstore
from benchmarks.datasets import EVENTS
from benchmarks.entries import commit_entry, fill
from segstore_ds.storage import open_storage
from segstore_ds.stream.connector.reads import open_snapshot
from segstore_ds.stream.opening import open as open_on


class Store(ABC):
    """A table or stream in a folder, by a library's Python API."""

    module: ClassVar[str]
    package: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.chance = random.Random(5)

    @abstractmethod
    def create(self, schema: pa.Schema = EVENTS) -> None:
        """Make it, empty."""

    @abstractmethod
    def append(self, data: pa.Table) -> None:
        """Append in one commit."""

    @abstractmethod
    def read(self, column: str | None) -> int:
        """Open it anew, read one column or all, and return how many events there were."""


class Listing(Store):
    """A store whose list of files can be filled by its own API, with files that are not there."""

    @abstractmethod
    def fill(self, files: int) -> None:
        """Make a table that lists so many."""

    @abstractmethod
    def add_file(self) -> None:
        """Commit one more."""

    @abstractmethod
    def count_files(self) -> int:
        """Open it anew and return how many it lists."""

    def _file(self) -> tuple[str, int, int]:
        """Make up a name, a size and a number of rows."""
        name = f"part-00000-{self.chance.getrandbits(128):032x}-c000.zstd.parquet"
        return name, self.chance.randrange(36_000, 44_000), self.chance.randrange(900, 1100)


class _Segstore(Listing):
    module = "segstore_ds"
    package = "segstore-ds"
    layout: ClassVar[segstore.Layout | None] = None

    def create(self, schema: pa.Schema = EVENTS) -> None:
        self._stream = segstore.create(self.folder, schema)

    def append(self, data: pa.Table) -> None:
        self._stream.append(data, layout=self.layout)

    def read(self, column: str | None) -> int:
        columns = None if column is None else [column]
        reader = segstore.open(self.folder).read(columns=columns, read_cache_bytes=0)
        return reader.read_all().num_rows

    def fill(self, files: int) -> None:
        self.create()
        fill(open_storage(self.folder), files)
        self._stream = open_on(open_storage(self.folder))

    def add_file(self) -> None:
        commit_entry(self._stream, self.chance)

    def count_files(self) -> int:
        snapshot = open_snapshot(open_storage(self.folder))
        return sum(len(task.slices) for task in snapshot.tasks(snapshot.plan()))


def laid_out(by: segstore.Layout) -> type[Store]:
    """Return the store whose appends have a layout."""
    return type("_LaidOut", (_Segstore,), {"layout": by})


class _Delta(Listing):
    module = "deltalake"
    package = "deltalake"

    def create(self, schema: pa.Schema = EVENTS) -> None:
        from deltalake import DeltaTable, WriterProperties

        self._table = DeltaTable.create(self.folder, schema)
        self._properties = WriterProperties(compression="ZSTD", compression_level=2)

    def append(self, data: pa.Table) -> None:
        from deltalake import write_deltalake

        write_deltalake(self._table, data, mode="append", writer_properties=self._properties)

    def read(self, column: str | None) -> int:
        from deltalake import DeltaTable

        columns = None if column is None else [column]
        return DeltaTable(self.folder).to_pyarrow_table(columns=columns).num_rows

    def fill(self, files: int) -> None:
        self.create()
        self._commit(files)
        self._table.create_checkpoint()

    def add_file(self) -> None:
        self._commit(1)

    def count_files(self) -> int:
        from deltalake import DeltaTable

        return len(DeltaTable(self.folder).file_uris())

    def _commit(self, files: int) -> None:
        from deltalake.transaction import AddAction

        now = int(time.time() * 1000)
        actions = [
            AddAction(name, size, {}, now, data_change=True, stats=json.dumps({"numRecords": rows}))
            for name, size, rows in (self._file() for _ in range(files))
        ]
        self._table.create_write_transaction(actions, "append", EVENTS)


class _Iceberg(Listing):
    module = "pyiceberg"
    package = "pyiceberg"

    def _catalog(self) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog

        return SqlCatalog(
            "benchmark",
            uri=f"sqlite:///{self.folder}/catalog.db",
            warehouse=f"file://{self.folder}/warehouse",
        )

    def create(self, schema: pa.Schema = EVENTS) -> None:
        self.folder.mkdir()
        catalog = self._catalog()
        catalog.create_namespace("b")
        self._table = catalog.create_table("b.events", schema=schema)

    def append(self, data: pa.Table) -> None:
        self._table.append(data)

    def read(self, column: str | None) -> int:
        fields = ("*",) if column is None else (column,)
        table = self._catalog().load_table("b.events")
        return int(table.scan(selected_fields=fields).to_arrow().num_rows)

    def fill(self, files: int) -> None:
        self.create()
        self._commit(files)

    def add_file(self) -> None:
        self._commit(1)

    def count_files(self) -> int:
        return sum(1 for _ in self._catalog().load_table("b.events").scan().plan_files())

    def _commit(self, files: int) -> None:
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        with self._table.transaction() as change, change.update_snapshot().fast_append() as made:
            for name, size, rows in (self._file() for _ in range(files)):
                file = DataFile.from_args(
                    content=DataFileContent.DATA,
                    file_path=f"file://{self.folder}/data/{name}",
                    file_format=FileFormat.PARQUET,
                    partition=Record(),
                    record_count=rows,
                    file_size_in_bytes=size,
                    spec_id=0,
                )
                made.append_data_file(file)


class _Lance(Store):
    module = "lance"
    package = "pylance"

    def create(self, schema: pa.Schema = EVENTS) -> None:
        import lance

        self._table = lance.write_dataset(schema.empty_table(), str(self.folder))

    def append(self, data: pa.Table) -> None:
        import lance

        self._table = lance.write_dataset(data, self._table, mode="append")

    def read(self, column: str | None) -> int:
        import lance

        columns = None if column is None else [column]
        return int(lance.dataset(str(self.folder)).to_table(columns=columns).num_rows)


class _Paimon(Store):
    module = "pypaimon"
    package = "pypaimon"

    def _open(self) -> Any:
        from pypaimon import CatalogFactory

        return CatalogFactory.create({"warehouse": str(self.folder)})

    def create(self, schema: pa.Schema = EVENTS) -> None:
        from pypaimon import Schema

        layout = {"file.format": "parquet", "file.compression": "zstd"}
        catalog = self._open()
        catalog.create_database("b", ignore_if_exists=False)
        declared = Schema.from_pyarrow_schema(schema, options=layout)
        catalog.create_table("b.events", declared, ignore_if_exists=False)
        self._table = catalog.get_table("b.events")

    def append(self, data: pa.Table) -> None:
        builder = self._table.new_batch_write_builder()
        write, commit = builder.new_write(), builder.new_commit()
        write.write_arrow(data)
        commit.commit(write.prepare_commit())
        write.close()
        commit.close()

    def read(self, column: str | None) -> int:
        builder = self._open().get_table("b.events").new_read_builder()
        if column is not None:
            builder = builder.with_projection([column])
        splits = builder.new_scan().plan().splits()
        return int(builder.new_read().to_arrow(splits).num_rows)


STORES: dict[str, type[Store]] = {
    "segstore": _Segstore,
    "delta-rs": _Delta,
    "pyiceberg": _Iceberg,
    "lance": _Lance,
    "paimon": _Paimon,
}


def installed() -> dict[str, type[Store]]:
    """Return the stores whose library is there."""
    found = importlib.util.find_spec
    return {name: store for name, store in STORES.items() if found(store.module) is not None}


def versions() -> str:
    """Say which versions of rivals are measured, and what is left out."""
    there = installed()
    return ", ".join(
        f"{name} {version(store.package)}" if name in there else f"{name} is not installed"
        for name, store in STORES.items()
        if store is not _Segstore
    )
