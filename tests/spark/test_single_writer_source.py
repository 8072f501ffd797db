"""Filesystems that create nothing exclusively: what Spark wrote there, Spark reads, if told so.

Without a session: Spark's processes would not know the filesystem of this test.
"""

import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import register_implementation
from query_kit import ask, rows, start_reader
from source_kit import load

import segstore_ds as segstore
from segstore_ds.cli.main import main
from segstore_ds.errors import UnsafeFilesystemError


class PlainFileSystem(MemoryFileSystem):
    """A filesystem that segstore does not know."""

    protocol = "plainfs"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("plainfs://"))


register_implementation("plainfs", PlainFileSystem, clobber=True)


def test_reads_take_single_writer_and_commands_do_unasked(capsys):
    url, events = "plainfs://test/single", pa.table({"n": [0, 1, 2, 3, 4]})
    segstore.create(url, events.schema, single_writer=True).append(events)
    with pytest.raises(UnsafeFilesystemError):
        load(url)
    found = load(url, singleWriter="true", startCut="2").rows()
    assert [row["n"] for row in found] == [2, 3, 4]
    reader = start_reader(url, singlewriter="true", readerName="billing")
    first = reader.initialOffset()
    end = ask(reader, first)
    assert [row["n"] for row in rows(reader, first, end)] == [0, 1, 2, 3, 4]
    ask(reader, end)
    (seen,) = segstore.open(url, single_writer=True).readers
    assert (seen.name, seen.record.offset) == ("billing", 5)
    assert main(["info", url]) == main(["verify", url]) == 0
    assert capsys.readouterr().out.endswith("no damage\n")
