"""What a published table shows, whatever its format, and what a format's codec has to offer."""

import hashlib
import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from segstore_ds.publish import paths
from segstore_ds.storage import ObjectInfo, Storage

Read = Callable[[], object]  # reads an object; raises FormatError if it is damaged


@dataclass(frozen=True, slots=True)
class Published:
    """What a published table shows.

    Attributes:
        format: ``delta`` or ``iceberg``.
        url: The table's location, for other engines: the stream's.
        table_version: The number of the table's newest commit.
        version: The stream's version that it shows.
        head: Offset of its first event.
        tail: Offset after its last event; later events are in no Parquet file yet.
        lag: How many events of the stream's newest version the table lacks.
        reason: Why it lacks them, and what to call; empty without a lag.
        left_out: Columns that the table lacks as its format has no such type, with their types.
        registered: The metadata that a catalog was told of; None if none was.
    """

    format: str
    url: str
    table_version: int
    version: int
    head: int
    tail: int
    lag: int
    reason: str
    left_out: dict[str, str]
    registered: str | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """What our commits to a table say of the stream.

    Attributes:
        stream_id: The stream.
        generation: Its generation.
        version: The stream's version that was published.
        head: Offset of the table's first event.
        tail: Offset after its last one.
        created_ms: When the table was made.
        own: How many files of its own it lists.
    """

    stream_id: str
    generation: int
    version: int
    head: int
    tail: int
    created_ms: int
    own: int = 0


def table_uuid(stream_id: str) -> str:
    """Return the id of a stream's tables."""
    digest = hashlib.blake2b(stream_id.encode(), digest_size=16).digest()
    return str(uuid.UUID(bytes=digest, version=4))


@dataclass(frozen=True, slots=True)
class File:
    """A file that a table lists, or should list: the events `[start, end)`.

    Attributes:
        path: In the stream's folder, which is the table's; the key of a file to be written.
        start: Offset of its first event.
        end: Offset after its last event.
        bytes: Its size; 0 of a file of the table's own that has to be written.
        stats: Statistics of the segment, as its entry has them.
    """

    path: str
    start: int
    end: int
    bytes: int = 0
    stats: str | None = None

    @property
    def key(self) -> str:
        """What names it among all files that a stream ever publishes."""
        return paths.published_key(self.path)

    @property
    def is_wanted(self) -> bool:
        """Whether it has to be written, because the segment's file does not serve."""
        return not self.bytes


Moves = tuple[tuple[File, bool], ...]  # files, each with whether it changes the rows


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table.

    Attributes:
        names: Their names, in order.
        left_out: The stream's other columns, each with the type that the format lacks.
        form: What the codec makes of them.
    """

    names: tuple[str, ...]
    left_out: dict[str, str]
    form: Any


@dataclass(frozen=True, slots=True)
class Table:
    """The newest state of a table.

    Attributes:
        version: The number of its newest commit; the one before the first without any.
        note: What that commit says of the stream.
        mark: By what the codec finds out whether that commit is in place.
        state: What the codec has read of it; None if a commit needs no more than the note.
        moved: Whether it names the files of a folder that the stream has left.
        hinted: Whether readers find this commit; the publisher stopped before saying so if not.
    """

    version: int
    note: Note | None = None
    mark: Any = None
    state: Any = None
    moved: bool = False
    hinted: bool = True


@dataclass(frozen=True, slots=True)
class Change:
    """The next commit of a table: what the stream shows, and which files come and go.

    Attributes:
        number: Of the commit.
        note: What it says of the stream.
        time_ms: When the stream's version was committed.
        schema: The stream's columns, and `columns` the table's.
        added: Files that come.
        removed: Files that go.
        again: Files as they were listed before, which `added` lists at other offsets.
        dropped: Ids of older snapshots that are named no more.
        client: Who commits.
    """

    number: int
    note: Note
    time_ms: int
    schema: pa.Schema
    columns: Columns
    added: Moves
    removed: Moves
    again: tuple[File, ...]
    dropped: Collection[int]
    client: str


@dataclass(frozen=True, slots=True)
class Staged:
    """A commit that is ready: its object, the table after it, and what it staged before."""

    path: str
    data: bytes
    table: Table
    paths: tuple[str, ...] = ()


class Codec(Protocol):
    """A table format: the bytes of a table's metadata, and back.

    Attributes:
        KIND: Its name, and that of the folder with the table's own files.
        TITLE: Its name for people.
        METADATA_FOLDER: Where the metadata lies.
        MAKES_TABLE: Objects of that folder that make a table, also those of other programs.
        FIRST: The number of a table's first commit.
        LARGE_BYTES: A commit that is larger is cleaned up after at once.
        TRAVELS: Whether superseded metadata stays as long as files do.
        POINTED: Whether catalogs keep a pointer to the newest metadata.
    """

    KIND: str
    TITLE: str
    METADATA_FOLDER: str
    MAKES_TABLE: re.Pattern[str]
    FIRST: int
    LARGE_BYTES: int
    TRAVELS: bool
    POINTED: bool

    def columns(self, schema: pa.Schema) -> Columns:
        """Return the columns that the format can express."""

    def newest(self, storage: Storage, *, asked: bool = False) -> Table:
        """Return the newest state; `asked` may leave out a table that readers don't find yet."""

    def read_files(self, storage: Storage, table: Table) -> tuple[Table, dict[str, File]]:
        """Return a table with all of its state, and its files by their keys."""

    def stage(
        self, storage: Storage, table: Table, change: Change, new_id: Callable[[], str]
    ) -> Staged:
        """Prepare a commit, whose exclusive create decides."""

    def is_in_place(self, storage: Storage, table: Table, number: int) -> bool:
        """Tell whether the commit before a new one is still there: the table was not removed."""

    def announce(self, storage: Storage, table: Table) -> None:
        """Tell readers which commit is the newest."""

    def written_us(self, storage: Storage) -> int:
        """Return when the table was last committed to, by the store's time; 0 for no table."""

    def checkpoint(self, storage: Storage, table: Table) -> None:
        """Write what makes older metadata superfluous."""

    def commit_path(self, version: int) -> str:
        """Return the path of a commit."""

    def superseded(self, objects: Collection[ObjectInfo], table: Table) -> Mapping[str, int]:
        """Return since when (us) metadata has been superseded, by path."""

    def parts(self, storage: Storage, table: Table) -> Collection[str]:
        """Return the paths of metadata that the newest commit names."""

    def stale(
        self, storage: Storage, objects: Collection[ObjectInfo], is_clean: Callable[[Note], bool]
    ) -> Collection[str]:
        """Return the paths of metadata that may hold bounds of values from before a clean state."""

    def unclean(self, table: Table, is_clean: Callable[[Note], bool]) -> Collection[int]:
        """Return the ids of named snapshots that are not clean."""

    def reads(
        self, storage: Storage, objects: Mapping[str, ObjectInfo]
    ) -> Iterator[tuple[str, Read]]:
        """Yield each object of the metadata with what reads it, and those that are missing."""
