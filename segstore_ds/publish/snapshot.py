"""What a published table shows, whatever its format, and what a format's codec has to offer.

Both formats have no digests of their metadata, so publishers add some: damage must not look like a
table. A JSON file holds the digest of its own bytes, taken with zeros in the digest's place. An
Avro file has it in its name, and a checkpoint in the metadata of its Parquet file.
"""

import hashlib
import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from segstore_ds.errors import CorruptionError
from segstore_ds.format.envelope import digest_of
from segstore_ds.format.schema.column_names import Names
from segstore_ds.publish import paths
from segstore_ds.storage import ObjectInfo, Storage

UNSEALED = "0" * 32
NAME_DIGITS = 8  # of a digest in a name
_REMEDY = (
    "give other programs read-only credentials; delete the table with published.remove(), then "
    "publish the stream again; move a table that is not the stream's to a folder of its own"
)
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
        metadata: The newest metadata of Iceberg, for a catalog; None of Delta, which needs none.
        latest_by: The columns of the key, if it shows the newest event of each alone; then the
            location is that of the stream beside, and versions and offsets are this stream's.
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
    metadata: str | None = None
    latest_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Note:
    """What our commits to a table say of the stream: which version the table shows."""

    stream_id: str
    generation: int
    version: int
    head: int  # offset of the table's first event
    tail: int  # offset after its last one
    created_ms: int  # when the table was made
    own: int = 0  # how many files it lists that are no whole segments of the version


def table_uuid(stream_id: str) -> str:
    """Return the id of a stream's tables."""
    digest = hashlib.blake2b(stream_id.encode(), digest_size=16).digest()
    return str(uuid.UUID(bytes=digest, version=4))


@dataclass(frozen=True, slots=True)
class File:
    """A file that a table lists, or should list: the events `[start, end)`."""

    path: str  # in the stream's folder; the key of a file to be written
    start: int
    end: int
    bytes: int = 0  # 0 of a file of the table's own that has to be written
    stats: str | None = None  # of the segment, as its entry has them

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
    """The columns of a table, and those left out, with the types that the format lacks.

    `names` are the stored ones, by which files and statistics go; `labels` those of their bounds,
    "" for a type that has none.
    """

    names: tuple[str, ...]
    left_out: dict[str, str]
    form: Any  # what the codec makes of them
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """The newest state of a table."""

    version: int  # of its newest commit; the one before the first without any
    note: Note | None = None  # what that commit says of the stream
    mark: Any = None  # by what the codec knows whether that commit is in place
    state: Any = None  # what the codec has read; None if a commit needs only the note
    moved: bool = False  # whether it names the files of a folder that was left
    hinted: bool = True  # whether readers find this commit


@dataclass(frozen=True, slots=True)
class Change:
    """The next commit of a table: what the stream shows, and which files come and go."""

    number: int
    note: Note
    time_ms: int  # when the stream's version was committed
    schema: pa.Schema  # the stream's columns; `columns` are the table's
    columns: Columns
    added: Moves
    removed: Moves
    again: tuple[File, ...]  # as listed before; `added` has them at other offsets
    fresh: bool  # whether no older snapshot is named any more
    client: str


@dataclass(frozen=True, slots=True)
class Staged:
    """A commit that is ready: its object, the table after it, and what it staged before."""

    path: str
    data: bytes
    table: Table
    paths: tuple[str, ...] = ()


class Codec(Protocol):
    """A table format: the bytes of a table's metadata, and back."""

    KIND: str  # its name, and that of the folder with the table's own files
    TITLE: str
    METADATA_FOLDER: str
    MAKES_TABLE: re.Pattern[str]  # what makes a table there, also other programs'
    HINT: str  # the object that names the newest commit; empty where readers list them
    FIRST: int  # the number of a table's first commit
    LARGE_BYTES: int  # a larger commit is cleaned up after at once
    TRAVELS: bool  # whether superseded metadata stays as long as files do
    POINTED: bool  # whether catalogs keep a pointer to the newest metadata

    def columns(self, schema: pa.Schema, names: Names) -> Columns:
        """Return the columns that the format can express, of a stored schema with its names."""

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

    def written_us(self, storage: Storage) -> int:
        """Return when the table was last committed to, by the store's time; 0 for no table."""

    def checkpoint(self, storage: Storage, table: Table) -> None:
        """Write what makes older metadata superfluous."""

    def commit_path(self, version: int) -> str:
        """Return the path of a commit."""

    def superseded(self, objects: Collection[ObjectInfo], table: Table) -> Mapping[str, int]:
        """Return since when (us) metadata has been superseded, by path."""

    def parts(self, storage: Storage, table: Table, *, files: bool) -> Collection[str]:
        """Return the paths of metadata that the newest commit names.

        With `files` also the keys of files that only older snapshots list which it names.
        """

    def reads(
        self, storage: Storage, objects: Mapping[str, ObjectInfo], now_us: int
    ) -> Iterator[tuple[str, Read]]:
        """Yield each object of the metadata with what reads it, and those missing before now."""


def seal(data: bytes, key: str) -> bytes:
    """Return a JSON text without spaces with its digest in the place of `UNSEALED`."""
    return data.replace(_field(key, UNSEALED), _field(key, digest_of(data)), 1)


def check_seal(data: bytes, key: str, digest: object, *, where: str) -> None:
    """Raise CorruptionError unless a JSON text has the digest that it holds."""
    found = digest if isinstance(digest, str) and digest.isascii() else ""
    check_digest(data.replace(_field(key, found), _field(key, UNSEALED), 1), found, where=where)


def check_digest(data: bytes, digest: str, *, where: str) -> None:
    """Raise CorruptionError unless bytes have a digest, or begin with what a name holds of it."""
    if not digest or not digest_of(data).startswith(digest):
        raise CorruptionError(
            "published metadata is damaged, or another program has written it",
            remedy=_REMEDY,
            where=where,
        )


def _field(key: str, digest: str) -> bytes:
    return f'"{key}":"{digest}"'.encode()
