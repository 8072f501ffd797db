"""Encodes, decodes and plans the manifests and manifest lists of a published Iceberg table.

Each manifest covers the range of offsets in its name, and the ranges of a snapshot are disjoint. So
the manifest list alone tells which manifests a change affects. An append writes one manifest; a
change in the middle rewrites those whose range it touches. Small manifests at the end are merged
now and then, so a table of 100,000 files has about a hundred manifests.
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
_MERGED = 32  # merge when so many small manifests are at the end
_SMALL = 1024  # a manifest with fewer files is small
_NONCE_DIGITS = 12
_CODEC = "deflate"  # the compression that every reader has
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
    snapshot_id: int  # of the snapshot that added or deleted it
    sequence: int  # sequence number of the snapshot that added it
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
        """How many of its files the snapshot has."""
        count: int = self.record["added_files_count"] + self.record["existing_files_count"]
        return count


@dataclass(frozen=True, slots=True)
class Form:
    """What all manifests of a table share: the stream, its URL, and the schema."""

    stream_id: str
    url: str
    schema_text: str = ""
    schema_id: int = 0

    def uri(self, path: str) -> str:
        """Return the URI of an object of the stream."""
        return f"{self.url}/{path}"

    def path(self, uri: str) -> str:
        """Return an object's path in the stream's folder; CorruptionError if it lies outside."""
        path = uri.removeprefix(f"{self.url}/")
        if path == uri:
            raise CorruptionError(
                "the published table lists a file outside its folder", where=self.url, uri=uri
            )
        return path

    def header(self, **values: object) -> dict[str, str]:
        """Return the metadata for an Avro file's header, with the stream's id to identify it."""
        texts = {key.replace("_", "-"): str(value) for key, value in values.items()}
        return {**texts, "format-version": str(FORMAT_VERSION), STREAM: self.stream_id}


def sealed_nonce(random: str, data: bytes) -> str:
    """Return the suffix of a file's name: random digits, then the first of its digest."""
    return random[: _NONCE_DIGITS - NAME_DIGITS] + digest_of(data)[:NAME_DIGITS]


def read_sealed(storage: Storage, path: str) -> bytes:
    """Return the bytes of a manifest or manifest list; CorruptionError if its digest differs."""
    data = storage.get(path)
    digest = path.removesuffix(".avro")[-NAME_DIGITS:]
    check_digest(data, digest, where=storage.describe(path))
    return data


def encode_manifest(entries: Iterable[Entry], form: Form) -> bytes:
    """Return the bytes of a manifest with these files."""
    header = form.header(
        schema=form.schema_text,
        schema_id=form.schema_id,
        partition_spec="[]",
        partition_spec_id=0,
        content="data",
    )
    return _encode(_entry_schema(), (_record(entry, form) for entry in entries), header)


def _encode(schema: Any, rows: Iterable[Any], header: Mapping[str, str]) -> bytes:
    sink = io.BytesIO()
    marker = secrets.token_bytes(16)  # `secrets`, so that tests can replace all randomness
    _avro().writer(sink, schema, rows, codec=_CODEC, metadata=header, sync_marker=marker)
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
    """Return a manifest's entries without deleted ones; the first begins at offset `start`."""
    entries = []
    for row in _avro().reader(io.BytesIO(data)):
        if row["status"] == DELETED:
            continue
        values = row["data_file"]
        path, end = form.path(values["file_path"]), start + values["record_count"]
        file = File(path, start, end, values["file_size_in_bytes"])
        stats = {name: values[name] for name in _STATS}
        one = Entry(row["status"], row["snapshot_id"], row["sequence_number"], file, stats)
        entries.append(one)
        start = end
    return entries


def describe_manifest(
    path: str, data: bytes, entries: Iterable[Entry], snapshot: tuple[int, int], form: Form
) -> Manifest:
    """Return the list's record of a new manifest; `snapshot` is an id and a sequence number."""
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
    """Return the bytes of a snapshot's manifest list."""
    header = form.header(
        snapshot_id=snapshot["snapshot-id"],
        parent_snapshot_id=snapshot.get("parent-snapshot-id", "null"),
        sequence_number=snapshot["sequence-number"],
        first_row_id=snapshot["first-row-id"],
    )
    return _encode(_list_schema(), (dict(manifest.record) for manifest in manifests), header)


def decode_list(data: bytes, form: Form) -> list[Manifest]:
    """Return the manifests of a snapshot, in the order of their offsets."""
    manifests = []
    for record in _avro().reader(io.BytesIO(data)):
        path = form.path(record["manifest_path"])
        span = paths.parse_manifest_path(path)
        if span is None:
            raise CorruptionError("published table lists another program's manifest", where=path)
        manifests.append(Manifest(path, *span, record))
    return sorted(manifests, key=lambda manifest: (manifest.start, manifest.end))


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Manifests to write: the files of neighbouring `old` ones, less those removed, and `added`."""

    old: tuple[Manifest, ...]
    added: tuple[Entry, ...]

    @property
    def files(self) -> int:
        """The most files that there may be."""
        return sum(manifest.files for manifest in self.old) + len(self.added)


def plan_manifests(
    manifests: Sequence[Manifest], removed: Sequence[Span], added: Sequence[Entry]
) -> list[Manifest | Rewrite]:
    """Return the manifests of the next snapshot, in the order of their offsets.

    `manifests` and `added` are sorted and disjoint; `removed` are the spans of removed files.
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
    """Append a rewrite to `items`, or join it to the rewrite at their end."""
    if items and isinstance(last := items[-1], Rewrite):
        items[-1] = Rewrite(last.old + old, last.added + added)
    elif old or added:
        items.append(Rewrite(old, added))


def _merge_small(items: list[Manifest | Rewrite]) -> None:
    """Join the small manifests at the end into one rewrite, if there are enough of them."""
    run = 0
    while run < len(items) and items[-1 - run].files < _SMALL:
        run += 1
    if run < _MERGED:
        return
    last = items[-run:]
    old = [m for item in last for m in ((item,) if isinstance(item, Manifest) else item.old)]
    new = [entry for item in last if isinstance(item, Rewrite) for entry in item.added]
    items[-run:] = [Rewrite(tuple(old), tuple(new))]
