"""Filesystems that create nothing exclusively: what Spark wrote there, Spark reads, if told so.

Without a session: Spark's processes would not know the filesystem of this test.
"""

import secrets

import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import register_implementation

import segstore_ds as segstore
from segstore_ds.cli.main import main
from segstore_ds.errors import UnsafeFilesystemError
from segstore_ds.spark.source import SegstoreDataSource
from segstore_ds.spark.versions import ReadAllAvailable


class PlainFileSystem(MemoryFileSystem):
    """A filesystem that segstore does not know."""

    protocol = "plainfs"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("plainfs://"))


register_implementation("plainfs", PlainFileSystem, clobber=True)


@pytest.fixture
def url() -> str:
    """A stream of five events."""
    made = f"plainfs://test/{secrets.token_hex(6)}"
    rows = pa.table({"n": [0, 1, 2, 3, 4]})
    segstore.create(made, rows.schema, single_writer=True).append(rows)
    return made


def source(url: str, **options: str) -> SegstoreDataSource:
    return SegstoreDataSource({"path": url, **options})


def read(reader, partitions) -> list[int]:
    return [
        n
        for partition in partitions
        for batch in reader.read(partition)
        for n in batch["n"].to_pylist()
    ]


def test_batch_read_takes_single_writer(url):
    with pytest.raises(UnsafeFilesystemError):
        source(url).schema()
    made = source(url, singleWriter="true", startCut="2")
    reader = made.reader(made.schema())
    assert read(reader, reader.partitions()) == [2, 3, 4]


def test_streaming_read_takes_single_writer_and_publishes(url):
    made = source(url, singlewriter="true", readerName="billing")
    reader = made.streamReader(made.schema())
    first = reader.initialOffset()
    end = reader.latestOffset(first, ReadAllAvailable())
    assert read(reader, reader.partitions(first, end)) == [0, 1, 2, 3, 4]
    reader.latestOffset(end, ReadAllAvailable())
    (seen,) = segstore.open(url, single_writer=True).readers
    assert (seen.name, seen.record.offset) == ("billing", 5)


def test_commands_read_it_unasked(url, capsys):
    assert main(["info", url]) == 0
    assert main(["verify", url]) == 0
    assert capsys.readouterr().out.endswith("no damage\n")
