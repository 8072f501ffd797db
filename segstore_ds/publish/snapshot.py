"""The values of a published table of any format, and the protocol of a format's codec.

Neither format has digests of its metadata, so publishers add them to detect damage. A JSON file
holds the digest of its own bytes, computed with zeros in the digest's place. An Avro file has it in
its name, and a checkpoint in the metadata of its Parquet file.
"""

import hashlib
import re
import uuid
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from segstore_ds.errors import CorruptionError, MissingObjectError
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
Read = Callable[[], object]  # reads and checks an object; raises FormatError if it is damaged


@dataclass(frozen=True, slots=True)
class Published:
    """What a published table shows.

    Attributes:
        format: ``delta`` or ``iceberg``.
        url: The table's location, for other engines; it is the stream's location.
        table_version: The number of the table's newest commit.
        version: The stream's version that it shows.
        head: Offset of its first event.
        tail: Offset after its last event; later events are in no Parquet file yet.
        lag: How many events of the stream's newest version the table lacks.
        reason: Why it lacks them, and what to call; empty without a lag.
        left_out: The columns that the table lacks, by name, with their types: its format has none.
        metadata: The URL of the newest Iceberg metadata, for a catalog; None for Delta.
        latest_by: The key columns of a table of newest events, otherwise empty. Such a table is at
            another location; its versions and offsets are those of this stream.
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
    """What each commit to a table says of the stream: which version the table shows."""

    stream_id: str
    generation: int
    version: int
    head: int  # offset of the table's first event
    tail: int  # offset after its last one
    created_ms: int  # when the table was made
    own: int = 0  # how many of its files are not whole segments of the version


def table_uuid(stream_id: str) -> str:
    """Return the id of a stream's tables."""
    digest = hashlib.blake2b(stream_id.encode(), digest_size=16).digest()
    return str(uuid.UUID(bytes=digest, version=4))


@dataclass(frozen=True, slots=True)
class File:
    """A file that a table lists, or should list: the events `[start, end)`."""

    path: str  # in the stream's folder; the key if the file is not written yet
    start: int
    end: int
    bytes: int = 0  # 0 if it is an own file that is not written yet
    stats: str | None = None  # the statistics in the segment's entry

    @property
    def key(self) -> str:
        """What identifies its content among all files that a stream ever publishes."""
        return paths.published_key(self.path)

    @property
    def is_wanted(self) -> bool:
        """Whether it is an own file that is not written yet."""
        return not self.bytes


Moves = tuple[tuple[File, bool], ...]  # files, each with whether it changes rows


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table, and the types of columns that its format can't express."""

    names: tuple[str, ...]  # as stored in files and statistics
    left_out: dict[str, str]
    form: Any  # the schema in the format's own form
    labels: tuple[str, ...]  # the labels of their statistics; "" for a type without


@dataclass(frozen=True, slots=True)
class Table:
    """The newest state of a table."""

    version: int  # of its newest commit; one below the first if there is no commit
    note: Note | None = None  # what that commit says of the stream
    mark: Any = None  # by which the codec recognizes that commit
    state: Any = None  # what the codec has read; None if a commit needs only the note
    moved: bool = False  # whether its files are at the stream's former location
    hinted: bool = True  # whether the hint names this commit


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
    fresh: bool  # whether to drop all older snapshots
    client: str


@dataclass(frozen=True, slots=True)
class Staged:
    """A commit ready to be created: its path and bytes, the table after it, staged objects."""

    path: str
    data: bytes
    table: Table
    paths: tuple[str, ...] = ()


class Codec(Protocol):
    """A table format: the bytes of a table's metadata, and back."""

    KIND: str  # its name, and that of the folder with the table's own files
    TITLE: str
    METADATA_FOLDER: str
    MAKES_TABLE: re.Pattern[str]  # paths of metadata of any program's table of this format
    HINT: str  # the object that names the newest commit
    FIRST: int  # the number of a table's first commit
    LARGE_BYTES: int  # after a larger commit, a checkpoint and a clean-up follow at once
    TRAVELS: bool  # whether superseded metadata stays as long as files do
    POINTED: bool  # whether catalogs keep a pointer to the newest metadata

    def columns(self, schema: pa.Schema, names: Names) -> Columns:
        """Return the columns that the format can express, of a stored schema with its names."""

    def newest(self, storage: Storage, *, visible: bool = False) -> Table:
        """Return the newest state; `visible` may leave out a table that readers can't open yet."""

    def read_files(self, storage: Storage, table: Table) -> tuple[Table, dict[str, File]]:
        """Return a table with all of its state, and its files by their keys."""

    def stage(
        self, storage: Storage, table: Table, change: Change, new_id: Callable[[], str]
    ) -> Staged:
        """Prepare a commit; the caller creates it."""

    def is_in_place(self, storage: Storage, table: Table, number: int) -> bool:
        """Tell whether the previous commit is still there, so the table was not removed."""

    def written_us(self, storage: Storage) -> int:
        """Return the store's time (us) of the last commit; 0 without a table."""

    def checkpoint(self, storage: Storage, table: Table) -> None:
        """Write a checkpoint, if the format has them."""

    def commit_path(self, version: int) -> str:
        """Return the path of a commit."""

    def superseded(self, objects: Collection[ObjectInfo], table: Table) -> Mapping[str, int]:
        """Return since when (us) metadata has been superseded, by path."""

    def parts(self, storage: Storage, table: Table, *, files: bool) -> Collection[str]:
        """Return the paths of metadata that the newest commit names.

        With `files` also the keys of files that only the older snapshots in it list.
        """

    def reads(
        self, storage: Storage, objects: Mapping[str, ObjectInfo], now_us: int
    ) -> Iterator[tuple[str, Read]]:
        """Yield each object of the metadata, also missing ones, with what reads and checks it."""


def seal(data: bytes, key: str) -> bytes:
    """Return a compact JSON text with its digest in the place of `UNSEALED`."""
    return data.replace(_field(key, UNSEALED), _field(key, digest_of(data)), 1)


def check_seal(data: bytes, key: str, digest: object, *, where: str) -> None:
    """Raise CorruptionError unless `digest`, which a JSON text holds, is its digest."""
    held = digest if isinstance(digest, str) and digest.isascii() else ""
    check_digest(data.replace(_field(key, held), _field(key, UNSEALED), 1), held, where=where)


def check_hint(
    storage: Storage, path: str, versions: Container[int], commit_path: Callable[[int], str]
) -> None:
    """Raise CorruptionError if a hint names none of the versions, nor one made after a listing."""
    text = storage.get(path, limit_bytes=100)
    named = int(text) if text.isdigit() else None
    if named in versions:
        return
    with suppress(MissingObjectError):
        if named is not None:
            storage.info(commit_path(named))
            return
    where = storage.describe(path)
    raise CorruptionError("the file names a version that does not exist", where=where, named=named)


def check_digest(data: bytes, digest: str, *, where: str) -> None:
    """Raise CorruptionError unless the digest of bytes begins with `digest`, which is not empty."""
    if not digest or not digest_of(data).startswith(digest):
        raise CorruptionError(
            "published metadata is damaged, or another program has written it",
            remedy=_REMEDY,
            where=where,
        )


def _field(key: str, digest: str) -> bytes:
    return f'"{key}":"{digest}"'.encode()
