"""Manifests and manifest lists of a published Iceberg table: bytes and back.

Every manifest's files tile a range of offsets, which its name says, and the manifests of a snapshot
are disjoint. So what a change touches is known from the list alone. An append writes one manifest.
A change in the middle writes those anew whose range it touches. Small manifests at the end are
merged now and then, so 100,000 files have about a hundred.
"""

import io
import secrets
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from segstore_ds.errors import CorruptionError, InvalidInputError
from segstore_ds.format.envelope import digest_of
from segstore_ds.publish import paths
from segstore_ds.publish.snapshot import NAME_DIGITS, File, check_digest
from segstore_ds.storage import Storage
from segstore_ds.version import requirement

EXISTING, ADDED, DELETED = 0, 1, 2  # of an entry
Span = tuple[int, int]
FORMAT_VERSION = 3  # the first with row ids
_MERGED = 32  # so many small manifests at the end become one
_SMALL = 1024  # files: fewer make a manifest small
_NONCE_DIGITS = 12
_CODEC = "deflate"  # the one that every reader has
STREAM = "segstore.stream"  # On disk: the key in the header of an Avro file with the stream's id.


def _optional(kind: Any, number: int, name: str) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "default": None, "field-id": number}


def _required(kind: Any, number: int, name: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "field-id": number}


def _by_column(numbers: tuple[int, int, int], name: str, kind: str) -> dict[str, Any]:
    outer, key, value = numbers
    pairs = {
        "type": "record",
        "name": f"k{key}_v{value}",
        "fields": [_required("int", key, "key"), _required(kind, value, "value")],
    }
    return _optional({"type": "array", "logicalType": "map", "items": pairs}, outer, name)


_FILE = (
    _required("int", 134, "content"),
    _required("string", 100, "file_path"),
    _required("string", 101, "file_format"),
    _required({"type": "record", "name": "r102", "fields": []}, 102, "partition"),
    _required("long", 103, "record_count"),
    _required("long", 104, "file_size_in_bytes"),
    _by_column((109, 119, 120), "value_counts", "long"),
    _by_column((110, 121, 122), "null_value_counts", "long"),
    _by_column((125, 126, 127), "lower_bounds", "bytes"),
    _by_column((128, 129, 130), "upper_bounds", "bytes"),
    _optional("long", 142, "first_row_id"),
)
_LIST = (
    _required("string", 500, "manifest_path"),
    _required("long", 501, "manifest_length"),
    _required("int", 502, "partition_spec_id"),
    _required("int", 517, "content"),
    _required("long", 515, "sequence_number"),
    _required("long", 516, "min_sequence_number"),
    _required("long", 503, "added_snapshot_id"),
    _required("int", 504, "added_files_count"),
    _required("int", 505, "existing_files_count"),
    _required("int", 506, "deleted_files_count"),
    _required("long", 512, "added_rows_count"),
    _required("long", 513, "existing_rows_count"),
    _required("long", 514, "deleted_rows_count"),
    _optional("long", 520, "first_row_id"),
)


@lru_cache
def _entry_schema() -> Any:
    file = {"type": "record", "name": "r2", "fields": [*_FILE]}
    return _avro().parse_schema(
        {
            "type": "record",
            "name": "manifest_entry",
            "fields": [
                _required("int", 0, "status"),
                _optional("long", 1, "snapshot_id"),
                _optional("long", 3, "sequence_number"),
                _optional("long", 4, "file_sequence_number"),
                _required(file, 2, "data_file"),
            ],
        }
    )


@lru_cache
def _list_schema() -> Any:
    return _avro().parse_schema({"type": "record", "name": "manifest_file", "fields": [*_LIST]})


def _avro() -> Any:
    try:
        import fastavro  # noqa: PLC0415 - an extra
    except ImportError as cause:
        raise InvalidInputError(
            "Iceberg's metadata needs fastavro", remedy=f"pip install '{requirement('iceberg')}'"
        ) from cause
    return fastavro


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in a manifest, and what a snapshot did to it."""

    status: int  # `EXISTING`, `ADDED` or `DELETED`
    snapshot_id: int  # that added it, or deleted it
    sequence: int  # of the snapshot that added it
    file: File
    stats: Mapping[str, Any] = field(default_factory=dict)

    @property
    def start(self) -> int:
        """Offset of its first event."""
        return self.file.start

    @property
    def end(self) -> int:
        """Offset after its last event."""
        return self.file.end


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest as a manifest list names it: its path, its range of offsets, and the record."""

    path: str
    start: int
    end: int
    record: Mapping[str, Any]

    @property
    def files(self) -> int:
        """How many files it holds that the snapshot has."""
        count: int = self.record["added_files_count"] + self.record["existing_files_count"]
        return count


@dataclass(frozen=True, slots=True)
class Form:
    """What all manifests of a table share: its stream, that one's URL, and the columns."""

    stream_id: str
    url: str
    schema_text: str = ""
    schema_id: int = 0

    def uri(self, path: str) -> str:
        """Return the URI of an object of the stream."""
        return f"{self.url}/{path}"

    def path(self, uri: str) -> str:
        """Return the path, in the stream's folder, of an object that the table names."""
        path = uri.removeprefix(f"{self.url}/")
        if path == uri:
            raise CorruptionError(
                "published table lists a file outside its folder", where=self.url, uri=uri
            )
        return path

    def about(self, **values: object) -> dict[str, str]:
        """Return what the header of an Avro file says; the stream's id shows whose it is."""
        texts = {key.replace("_", "-"): str(value) for key, value in values.items()}
        return {**texts, "format-version": str(FORMAT_VERSION), STREAM: self.stream_id}


def sealed_nonce(random: str, data: bytes) -> str:
    """Return what ends the name of a file: random digits, then those of its digest."""
    return random[: _NONCE_DIGITS - NAME_DIGITS] + digest_of(data)[:NAME_DIGITS]


def read_sealed(storage: Storage, path: str) -> bytes:
    """Return a manifest or a list of them; CorruptionError if it is not what its name says."""
    data = storage.get(path)
    digest = path.removesuffix(".avro")[-NAME_DIGITS:]
    check_digest(data, digest, where=storage.describe(path))
    return data


def encode_manifest(entries: Iterable[Entry], form: Form) -> bytes:
    """Return a manifest with these files."""
    about = form.about(
        schema=form.schema_text,
        schema_id=form.schema_id,
        partition_spec="[]",
        partition_spec_id=0,
        content="data",
    )
    return _encode(_entry_schema(), (_record(entry, form) for entry in entries), about)


def _encode(schema: Any, rows: Iterable[Any], about: Mapping[str, str]) -> bytes:
    sink = io.BytesIO()
    marker = secrets.token_bytes(16)  # as the library would, but from where all of our chance is
    _avro().writer(sink, schema, rows, codec=_CODEC, metadata=about, sync_marker=marker)
    return sink.getvalue()


def _record(entry: Entry, form: Form) -> dict[str, Any]:
    return {
        "status": entry.status,
        "snapshot_id": entry.snapshot_id,
        "sequence_number": entry.sequence,
        "file_sequence_number": entry.sequence,
        "data_file": {
            "content": 0,
            "file_path": form.uri(entry.file.path),
            "file_format": "PARQUET",
            "partition": {},
            "record_count": entry.end - entry.start,
            "file_size_in_bytes": entry.file.bytes,
            "first_row_id": entry.start,
            **entry.stats,
        },
    }


_STATS = ("value_counts", "null_value_counts", "lower_bounds", "upper_bounds")


def decode_manifest(data: bytes, start: int, form: Form) -> list[Entry]:
    """Return the files of a manifest that its snapshot has; the first begins at `start`."""
    found = []
    for row in _avro().reader(io.BytesIO(data)):
        if row["status"] == DELETED:
            continue
        values = row["data_file"]
        path, end = form.path(values["file_path"]), start + values["record_count"]
        file = File(path, start, end, values["file_size_in_bytes"])
        stats = {name: values[name] for name in _STATS}
        found.append(Entry(row["status"], row["snapshot_id"], row["sequence_number"], file, stats))
        start = end
    return found


def describe_manifest(
    path: str, data: bytes, entries: Iterable[Entry], snapshot: tuple[int, int], form: Form
) -> Manifest:
    """Return a manifest that a snapshot, given by id and sequence number, has written."""
    counts, rows = [0, 0, 0], [0, 0, 0]
    snapshot_id, sequence = snapshot
    least = sequence
    for entry in entries:
        counts[entry.status] += 1
        rows[entry.status] += entry.end - entry.start
        least = least if entry.status == DELETED else min(least, entry.sequence)
    start, end = paths.parse_manifest_path(path) or (0, 0)
    record = {
        "manifest_path": form.uri(path),
        "manifest_length": len(data),
        "partition_spec_id": 0,
        "content": 0,
        "sequence_number": sequence,
        "min_sequence_number": least,
        "added_snapshot_id": snapshot_id,
        "added_files_count": counts[ADDED],
        "existing_files_count": counts[EXISTING],
        "deleted_files_count": counts[DELETED],
        "added_rows_count": rows[ADDED],
        "existing_rows_count": rows[EXISTING],
        "deleted_rows_count": rows[DELETED],
        "first_row_id": start,
    }
    return Manifest(path, start, end, record)


def encode_list(manifests: Iterable[Manifest], form: Form, snapshot: Mapping[str, Any]) -> bytes:
    """Return the manifest list of a snapshot."""
    about = form.about(
        snapshot_id=snapshot["snapshot-id"],
        parent_snapshot_id=snapshot.get("parent-snapshot-id", "null"),
        sequence_number=snapshot["sequence-number"],
        first_row_id=snapshot["first-row-id"],
    )
    return _encode(_list_schema(), (dict(manifest.record) for manifest in manifests), about)


def decode_list(data: bytes, form: Form) -> list[Manifest]:
    """Return the manifests of a snapshot, in the order of their offsets."""
    found = []
    for record in _avro().reader(io.BytesIO(data)):
        path = form.path(record["manifest_path"])
        span = paths.parse_manifest_path(path)
        if span is None:
            raise CorruptionError("published table lists another program's manifest", where=path)
        found.append(Manifest(path, *span, record))
    return sorted(found, key=lambda manifest: (manifest.start, manifest.end))


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Files of neighbouring manifests, less those that go, and new files beside them."""

    old: tuple[Manifest, ...]
    added: tuple[Entry, ...]

    @property
    def files(self) -> int:
        """How many files there may be."""
        return sum(manifest.files for manifest in self.old) + len(self.added)


def plan_manifests(
    manifests: Sequence[Manifest], removed: Sequence[Span], added: Sequence[Entry]
) -> list[Manifest | Rewrite]:
    """Return the manifests of the next snapshot, in the order of their offsets.

    `manifests` and `added` are sorted and disjoint; `removed` are the spans of files that go.
    """
    starts, ends = [m.start for m in manifests], [m.end for m in manifests]
    touched = {
        place
        for start, end in (*removed, *((entry.start, entry.end) for entry in added))
        for place in range(bisect_right(ends, start), bisect_left(starts, end))
    }
    items: list[Manifest | Rewrite] = []
    done = 0
    for place, manifest in enumerate(manifests):
        if not manifest.files:
            continue
        upto = bisect_left(added, manifest.start, key=lambda entry: entry.start)
        _rewrite(items, (manifest,) if place in touched else (), tuple(added[done:upto]))
        done = max(done, upto)
        if place not in touched:
            items.append(manifest)
    _rewrite(items, (), tuple(added[done:]))
    _merge_small(items)
    return items


def _rewrite(
    items: list[Manifest | Rewrite], old: tuple[Manifest, ...], added: tuple[Entry, ...]
) -> None:
    """Rewrite manifests and add files, together with the rewrite right before them."""
    if items and isinstance(last := items[-1], Rewrite):
        items[-1] = Rewrite(last.old + old, last.added + added)
    elif old or added:
        items.append(Rewrite(old, added))


def _merge_small(items: list[Manifest | Rewrite]) -> None:
    """Make the small manifests at the end one, if there are enough of them."""
    run = 0
    while run < len(items) and items[-1 - run].files < _SMALL:
        run += 1
    if run < _MERGED:
        return
    last = items[-run:]
    old = [m for item in last for m in ((item,) if isinstance(item, Manifest) else item.old)]
    new = [entry for item in last if isinstance(item, Rewrite) for entry in item.added]
    items[-run:] = [Rewrite(tuple(old), tuple(new))]
