"""Streams written by every format so far, read by segstore and by a reader that shares no code."""

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import make_golden
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from golden_keys import KEYS, filtered, hashed_bytes, holds, part_filters
from golden_levels import LEVELS, described
from golden_parquet import PARQUET
from golden_reader import envelope, newest_root, read_stream, rows_of, status
from make_golden import LATER, SETS, TIMED, events, rows_as_json

import segstore_ds as segstore
from segstore_ds.errors import UnsupportedVersionError, WriterConflictError
from segstore_ds.storage import open_storage
from segstore_ds.stream.stream import Stream

HERE = Path(__file__).parent
FOLDERS = sorted(path for version in HERE.glob("v*") for path in version.iterdir() if path.is_dir())
READABLE = [path for path in FOLDERS if path.name != "unknown-reader-feature"]
CLOSED = {"unknown-writer-feature", "kept"}  # nothing may be appended to them
OPEN_ENDED = [path for path in READABLE if path.name not in CLOSED]
FIRST = HERE / "v1"
LATEST = HERE / "v1-levels"


def name_of(folder: Path) -> str:
    """Return the id of a golden stream."""
    return f"{folder.parent.name}-{folder.name}"


def expected(folder: Path) -> dict[str, object]:
    """Return what has to be read from a golden stream."""
    return json.loads(folder.with_name(f"{folder.name}.json").read_text(encoding="utf-8"))


def copied(folder: Path, to: Path) -> Path:
    """Return a copy of a golden stream, to write to."""
    return Path(shutil.copytree(folder, to / folder.name))


def opened(folder: Path, to: Path) -> Stream:
    """Open a copy to write to; its versions are so old that upkeep would begin at once."""
    stream = segstore.open(copied(folder, to))
    stream.settings.update(upkeep=None)
    return stream


@pytest.mark.parametrize("version", SETS)
def test_every_format_is_complete(version: str) -> None:
    """Every kind of stream is still there."""
    found = {path.name for path in FOLDERS if path.parent.name == version}
    assert found == set(SETS[version])


@pytest.mark.parametrize("folder", READABLE, ids=name_of)
def test_segstore_reads_golden_stream(folder: Path) -> None:
    """Values, schema, cuts and version are those of the day it was written; it verifies."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    stream = segstore.open(folder)
    assert make_golden.expected(stream._log.storage, folder.parent.name) == expected(folder)
    report = stream.verify().check()
    assert report.rows >= stream.tail - stream.head
    assert report.leftovers == []
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("folder", READABLE, ids=name_of)
def test_reader_that_knows_only_the_format_reads_golden_stream(folder: Path) -> None:
    """FORMAT.md says enough to read every stream, with all checksums right."""
    head, tail, table = read_stream(folder)
    known = expected(folder)
    assert (head, tail) == (known["head"], known["tail"])
    assert {field.name: str(field.type) for field in table.schema} == known["schema"]
    assert rows_as_json(table) == known["rows"]


@pytest.mark.parametrize("name", PARQUET)
def test_golden_parquet_files_have_the_ids_of_the_format(name: str) -> None:
    """Each column and nested field has the number that FORMAT.md 6 computes."""
    files = sorted((HERE / "v1-parquet" / name).rglob("*.parquet"))
    schemas = [pq.read_schema(path) for path in files]
    stored = dict(pair for schema in schemas for pair in ids_of(schema, ()))
    assert stored
    for words, number in stored.items():
        text = json.dumps(words, separators=(",", ":")).encode()
        digest = hashlib.blake2b(text, digest_size=4).digest()
        assert number == int.from_bytes(digest, "big") % 2**31


@pytest.mark.parametrize("name", KEYS)
def test_golden_filters_hold_what_the_format_says(name: str) -> None:
    """Every value of a frame is in its filters, by FORMAT.md 6 alone, and few others are."""
    found = list(filtered(HERE / "v1-keys" / name))
    types = {column for column, _, _ in found}
    known = {*segstore.open(HERE / "v1-keys" / name).schema.names}
    assert types == known - ({"bool"} if name == "keys-parquet" else set())
    for column, data, values in found:
        assert all(holds(data, value) for value in hashed_bytes(values)), column
        others = [holds(data, f"other {n}".encode()) for n in range(200)]
        assert sum(others) <= 20, column


def test_golden_filters_of_segments_hold_what_the_format_says() -> None:
    """Every value of a segment is in one of its column's filters, by FORMAT.md 5.2 alone."""
    folder = HERE / "v1-segment-filters/segment-filters"
    ((path, _, _, _, size, *_),) = newest_root(folder)["parts"]
    (none, *some, last) = part_filters(folder, path, size)
    assert (none, last) == ({}, None)
    # Those of two frames, which were joined where half of the bits sufficed.
    counts = [{name: len(each) for name, each in found.items()} for found in some]
    assert counts == [{"n": 2, "word": 1}] * 3
    table = read_stream(folder)[2]
    for place, found in enumerate(some):
        rows = table.slice(25 + 50 * place, 50)
        for name, filters in found.items():
            values = hashed_bytes(rows[name].combine_chunks())
            assert all(any(holds(data, value) for data in filters) for value in values)
            others = [f"other {n}".encode() for n in range(200)]
            assert sum(any(holds(data, other) for data in filters) for other in others) <= 60


def test_golden_filters_of_segments_find_every_row() -> None:
    """Lookups return what a plain read does: where filters are, and where there are none."""
    stream = segstore.open(HERE / "v1-segment-filters/segment-filters")
    words = stream.read().read_all()["word"].to_pylist()
    for n in range(-1, 227, 3):
        found = stream.read(filters=[["n", "==", n]], read_cache_bytes=0).read_all()
        assert found["word"].to_pylist() == words[n : n + 1] * (0 <= n < 225)
    found = stream.read(filters=[["word", "in", ["ada", "nobody"]]]).read_all()
    assert found.num_rows == words.count("ada")


def bounds(folder: Path) -> list[tuple[list[int | None], list[int | None] | None]]:
    """Return the times of each segment, and its bounds and nulls as the status has them."""
    root, (_, _, table) = newest_root(folder), read_stream(folder)
    column = json.loads(root["properties"]["time_column"])
    found, start = [], 0
    for entry in root["entries"]:
        stats = None if entry[7] is None else json.loads(entry[7])[f"int:{column}"]
        found.append((table[column].slice(start, entry[2]).to_pylist(), stats))
        start += entry[2]
    return found


def part_bounds(folder: Path) -> list[tuple[list[int], list[int | None] | None]]:
    """Return the times in each list and part that the root names, and what its row says."""
    root, (head, _, table) = newest_root(folder), read_stream(folder)
    found = []
    for _, start, end, *_, stats in (*root["lists"], *root["parts"]):
        values = table["n"].slice(start - head, end - start).drop_null().to_pylist()
        said = None if stats is None else json.loads(stats)["int:n"][:2]
        found.append((values, said))
    return found


def test_golden_bounds_in_time_are_those_of_the_events() -> None:
    """Whatever the layouts asked for, from the commit on that named the column."""
    found = bounds(HERE / "v1-times/times")
    assert [values for values, _ in found] == TIMED
    assert [stats for _, stats in found] == [None, [3, 9, 0], [None, None, 1], [4, 8, 0], [6, 6, 0]]


def test_golden_bounds_of_parts_are_those_of_their_events() -> None:
    """Of a list and of parts; null where they are not known, nulls where no event has a time."""
    found = part_bounds(HERE / "v1-times/whole-parts")
    kinds = {None if said is None else said[0] is None for _, said in found}
    assert kinds == {None, True, False}
    for values, said in found:
        if said is not None:
            assert said == ([min(values), max(values)] if values else [None, None])
    stream = segstore.open(HERE / "v1-times/whole-parts")
    assert stream.read(event_time=(100, 120)).read_all()["n"].to_pylist() == [100, 110, 108, 118]


def test_golden_times_are_found() -> None:
    """By cuts and by intervals, in segments with and without bounds."""
    stream = segstore.open(HERE / "v1-times/times")
    assert stream.settings.time_column == "n"
    assert [stream.position(f"eventtime:{n}").offset for n in (1, 6, 10)] == [0, 4, 11]
    found = stream.read("eventtime:6", event_time=(3, 7)).read_all()
    assert found["n"].to_pylist() == [3, 4, 6]
    assert stream.scan("head", "eventtime:3").count() == 4


def ids_of(fields: Iterable[pa.Field], path: tuple[str, ...]) -> Iterator[tuple[tuple, int]]:
    """Yield kind and path of each column, and its id."""
    for field in fields:
        place, kind, inner = (*path, field.name), re.sub(r"[\d\[(<].*", "", str(field.type)), ()
        kind = {"double": "float", "timestamp": "timestamp_ntz"}.get(kind, kind)
        if "tz=" in str(field.type) and kind == "timestamp_ntz":
            kind = "timestamp"
        if kind == "map":
            inner = (field.type.key_field, field.type.item_field)
        elif kind in ("struct", "list"):
            inner = tuple(field.type.field(n) for n in range(field.type.num_fields))
        yield (kind, *place), int(field.metadata[b"PARQUET:field_id"])
        yield from ids_of(inner, place)


@pytest.mark.parametrize("folder", OPEN_ENDED, ids=name_of)
def test_golden_stream_accepts_new_commits(folder: Path, tmp_path: Path) -> None:
    """Today's version appends to a stream of any format, and the old reader reads that too."""
    stream = opened(folder, tmp_path)
    tail, rows = stream.tail, stream.read().read_all()
    stream.append(rows.slice(0, 1) if rows.num_rows else events(0, 1))
    stream.verify().check()
    head, end, table = read_stream(tmp_path / folder.name)
    assert (head, end, table.num_rows) == (stream.head, tail + 1, tail + 1 - head)


@pytest.mark.parametrize("folder", OPEN_ENDED, ids=name_of)
def test_golden_stream_is_maintained(folder: Path, tmp_path: Path) -> None:
    """Upkeep of a stream older than its whole window takes no event and no cut."""
    stream = segstore.open(copied(folder, tmp_path))
    stream.settings.update(upkeep=segstore.UpkeepPolicy())
    head, tags = stream.head, stream.tags
    stream.maintain()
    stream.verify().check()
    assert (stream.head, stream.tags) == (head, tags)
    rows = rows_as_json(read_stream(tmp_path / folder.name)[2])
    assert rows == expected(folder)["rows"]


@pytest.mark.parametrize("folder", READABLE, ids=name_of)
def test_todays_code_still_writes_every_format(folder: Path, tmp_path: Path) -> None:
    """A stream written today is read by the reader that knows only FORMAT.md."""
    make_golden.write_stream(open_storage(tmp_path / "s"), folder.name, folder.parent.name)
    head, tail, table = read_stream(tmp_path / "s")
    known = expected(folder)
    assert (head, tail, table.num_rows) == (known["head"], known["tail"], len(known["rows"]))


COLUMNS = "version time operation head tail rows segments bytes writer_id batch_id client"
COLUMNS += " application attempts races_lost requests request_bytes transaction merged"


def read_history(folder: Path) -> list[list[Any]]:
    """Return the rows of all commits as the root writes them, from FORMAT.md alone (5.3)."""
    root, refs, rows = newest_root(folder), [], []
    for path, *_ in root["history_lists"]:
        refs += json.loads(status([folder], path))
    for path, start, end, count, _, first_us, last_us, _ in [*refs, *root["history_parts"]]:
        assert count == end - start
        _, columns = rows_of(status([folder], path))
        part = [list(row) for row in zip(*(columns[name] for name in COLUMNS.split()), strict=True)]
        assert [row[0] for row in part] == list(range(start, end))
        assert (part[0][1], part[-1][1]) == (first_us, last_us)
        rows += part
    return rows + root["history"]


def read_readers(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the newest record of each named reader (8)."""
    records = {}
    for log in folder.glob("readers/[!_]*"):
        numbered = [path for path in log.iterdir() if re.fullmatch("[0-9]{20}", path.name)]
        record = json.loads(envelope(max(numbered).read_bytes()))
        assert (record["name"], record["number"]) == (log.name, int(max(numbered).name))
        hinted = (folder / "readers" / "_latest" / log.name).read_text().split()[0]
        assert max(numbered).name >= hinted
        records[log.name] = record
    return records


@pytest.mark.parametrize("name", LEVELS)
def test_reader_that_knows_only_the_format_knows_what_was_done(name: str) -> None:
    """History, tags and named readers are what FORMAT.md says, in whatever objects they lie."""
    known = expected(LATEST / name)
    times = pa.array([row[1] for row in known["history"]]).cast(pa.timestamp("us", "UTC"))
    rows = [
        [row[0], us, *row[2:]]
        for row, us in zip(known["history"], times.cast("int64").to_pylist(), strict=True)
    ]
    assert read_history(LATEST / name) == rows
    root = newest_root(LATEST / name)
    assert {tag: value[:2] for tag, value in root["tags"].items()} == known["tags"]
    readers = {
        reader: [record[field] for field in ("owner", "offset", "lapse_s", "released")]
        for reader, record in read_readers(LATEST / name).items()
    }
    assert readers == known["readers"]


@pytest.mark.parametrize("name", LEVELS)
def test_golden_history_comes_through_what_is_done_now(name: str, tmp_path: Path) -> None:
    """Appends, merges, a compaction and a purge change no row of the past and no cut."""
    stream = opened(LATEST / name, tmp_path)
    if not stream.sealed:
        for n in range(70):
            stream.append(events(n, n + 1))
        stream.compact(start=stream.head)
    stream.maintain(keep=3600)
    known, found = expected(LATEST / name), described(stream)
    assert found["history"][: len(known["history"])] == known["history"]
    assert found["cuts"].items() >= known["cuts"].items()
    kept = read_history(tmp_path / name)
    assert [row[0] for row in kept] == [row[0] for row in found["history"]]
    stream.verify().check()


def test_reader_that_knows_only_the_format_reads_clones(tmp_path: Path) -> None:
    """Their origin is found by its canonical location, however its folder is called."""
    origin = segstore.open(copied(HERE / "v1-levels/levels", tmp_path / "a %41 größe"))
    origin.copy_to(tmp_path / "clone", copy_id="c", mode="clone")
    clone = segstore.open(tmp_path / "clone")
    clone.append(events(90, 92))
    head, tail, table = read_stream(tmp_path / "clone")
    assert (head, tail) == (clone.head, clone.tail)
    assert table.equals(clone.read().read_all())


def test_unknown_reader_feature_is_refused() -> None:
    """A stream that this version could misread isn't opened, and no older version of it either."""
    with pytest.raises(UnsupportedVersionError, match="a-later-feature"):
        segstore.open(FIRST / "unknown-reader-feature")
    with pytest.raises(NotImplementedError, match="a-later-feature"):
        read_stream(FIRST / "unknown-reader-feature")


def test_unknown_writer_feature_is_read_only(tmp_path: Path) -> None:
    """Reads work, every change is refused, and nothing is left behind."""
    folder = copied(FIRST / "unknown-writer-feature", tmp_path)
    before = {path for path in folder.rglob("*") if path.is_file()}
    stream = segstore.open(folder)
    assert stream.read().read_all().equals(events(0, 3))
    for change in (
        lambda: stream.append(events(3, 4)),
        lambda: stream.append(events(3, 4), writer_id="w", batch_id=1),
        lambda: stream.overwrite(events(3, 4)),
    ):
        with pytest.raises(UnsupportedVersionError, match="a-later-feature"):
            change()
    assert {path for path in folder.rglob("*") if path.is_file()} == before


def test_unknown_fields_are_carried_through(tmp_path: Path) -> None:
    """Top-level fields of a newer version come through our commits unchanged."""
    stream = segstore.open(copied(FIRST / "unknown-fields", tmp_path))
    stream.append(events(3, 4))
    stream.overwrite(events(9, 10), writer_id="w", batch_id=1)
    root = newest_root(tmp_path / "unknown-fields")
    assert root["version"] == 4
    assert {name: root[name] for name in LATER} == LATER
    stream.verify().check()


def test_batches_of_golden_writers_are_known(tmp_path: Path) -> None:
    """A batch that was committed then is a repeat now, in the root or in a part."""
    stream = segstore.open(copied(FIRST / "writers", tmp_path))
    assert stream._log.root.writers_parts
    for writer, batch, start in [("writer 0", 9, 6), ("writer 1", 1, 1), ("writer 5", 5, 5)]:
        same = events(start, start + 1)
        assert stream.append(same, writer_id=writer, batch_id=batch).repeated
        with pytest.raises(WriterConflictError):
            stream.append(events(8, 9), writer_id=writer, batch_id=batch)
    assert stream.refresh().tail == expected(FIRST / "writers")["tail"]
