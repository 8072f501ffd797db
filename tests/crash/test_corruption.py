"""Every byte of a small stream flipped, every file cut, emptied, removed or replaced by noise.

Opening and reading then gives a typed error or exactly the right answer: never a wrong one, a hang
or a huge allocation. `verify` names the damaged object, and a damaged frame hides no neighbour.
"""

import random
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from crash_kit import content_on, discard, events, files_of, fresh_storage, memory_limit, restore
from everything_kit import WAYS, Everything, ask_all, make_everything, named_in, spoil
from everything_kit import kind_of as object_kind
from virtual_time import TimedStorage, VirtualTime

from segstore_ds.errors import (
    CorruptionError,
    EmptyObjectError,
    FormatError,
    MissingObjectError,
    SegstoreError,
)
from segstore_ds.format import names
from segstore_ds.read.segments import open_segment
from segstore_ds.storage import Storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.rescue import repair as repair_on
from segstore_ds.stream.rescue import verify as verify_on
from segstore_ds.write.layout import Layout

pytestmark = pytest.mark.slow

ROWS = 12
NEWEST = "log/00000000000000000005"
HINT = "log/_latest"


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    with memory_limit(512 << 20):
        yield


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("none arrow", marks=pytest.mark.sweep),
        "zstd arrow",
        "zstd parquet",
    ],
)
def files(request: pytest.FixtureRequest) -> dict[str, bytes]:
    """Return a small stream that has everything: a part, inline entries, a writer, an old log."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("segstore_ds.status.table.SEGMENTS.rows", 2)
        time = VirtualTime(7)
        storage = TimedStorage(fresh_storage("memory", Path()), time)
        stream = create_on(storage, events(0, 0).schema, clock=time.clock)
        codec, form = request.param.split()
        layout = Layout(
            compression=codec,
            inline_bytes=0,
            frame_rows=1,
            segment_format=form,
            stats_columns=("n",),
        )
        for batch in range(4):
            rows = events(batch * 2, batch * 2 + 2)
            stream.append(rows, layout=layout, writer_id="w", batch_id=batch)
        stream.append(events(8, ROWS), layout=layout)
    found = files_of(storage)
    discard(storage)
    assert stream._log.root.parts
    assert len(stream._log.root.entries) == 2
    assert stream.version == 5
    assert sum(path.endswith(f".{form}") for path in found) == 5
    return found


@pytest.fixture
def storage(files: dict[str, bytes]) -> Iterator[Storage]:
    """Return a storage that holds the stream."""
    made = restore(fresh_storage("memory", Path()), files)
    yield made
    discard(made)


def kind_of(path: str) -> str:
    """Return what an object is: ``newest``, ``older`` (commit), ``hint``, ``part``, ``segment``.

    A part is one under either of its two names.
    """
    if path == HINT:
        return "hint"
    if path.startswith("log/"):
        return "newest" if path == NEWEST else "older"
    return "segment" if path.startswith("segments/") else "part"


def check(storage: Storage, path: str, right: object, what: str) -> str:
    """Open and read a damaged stream; return ``right`` or ``error`` and allow nothing else."""
    try:
        found = content_on(storage)
    except FormatError:
        found = None
    # The hint is never trusted, so nothing that stands there can do harm; parts stand twice.
    assert found is not None or kind_of(path) not in ("hint", "part"), what
    if found is None:
        return "error"
    assert found == right, what
    # Whatever reading needs is covered by a checksum; other commits and the hint are not needed.
    # Of what lies twice it is verify that has to tell.
    if kind_of(path) in ("newest", "part", "segment"):
        assert not open_on(storage).verify().ok, what
    return "right"


def damage(
    storage: Storage, files: dict[str, bytes], path: str, kinds: Iterator[tuple[str, bytes]]
) -> None:
    """Check every damaged content of one object."""
    right = content_on(storage)
    for what, data in kinds:
        storage.put(path, data)
        check(storage, path, right, f"{path}: {what}")
    storage.put(path, files[path])
    assert content_on(storage) == right


def flips(data: bytes, places: Iterable[int]) -> Iterator[tuple[str, bytes]]:
    """Yield a content with a bit of each of the bytes at some places changed in turn."""
    for place in places:
        changed = bytes([data[place] ^ 1 << place % 8])
        yield f"a bit of byte {place}", data[:place] + changed + data[place + 1 :]


def essential(files: dict[str, bytes]) -> list[str]:
    """Return one object of each kind, the part's oldest segment and the newest segment."""
    segments = sorted(path for path in files if path.startswith("segments/"))
    part = min(path for path in files if path.startswith("status/"))
    twin = names.twin_of(part)
    return [NEWEST, HINT, "log/00000000000000000002", part, twin, segments[0], segments[-1]]


@pytest.mark.parametrize(
    "stride",
    # Every fifth byte has each of the eight bits in its turn.
    [pytest.param(5, id="every-fifth"), pytest.param(1, id="every", marks=pytest.mark.sweep)],
)
def test_every_flipped_byte_is_noticed(
    storage: Storage, files: dict[str, bytes], stride: int
) -> None:
    """One bit of every byte of an object of every kind.

    One digest covers all of a part behind its first lines, and each flip there takes a whole read
    and a whole verify: where not every byte is flipped, every thirteenth is.
    """
    for path in essential(files):
        data = files[path]
        lines = 100 if stride > 1 and kind_of(path) == "part" else len(data)
        places = [*range(0, lines, stride), *range(lines, len(data), 13)]
        if kind_of(path) != "older":
            damage(storage, files, path, flips(data, places))


def test_every_cut_is_noticed(storage: Storage, files: dict[str, bytes]) -> None:
    """Objects that end early, also within their last and first bytes, or that go on too long."""
    for path in essential(files):
        data = files[path]
        lengths = {*range(1, 40), *range(40, len(data), 31), *range(len(data) - 40, len(data))}
        cuts = [(f"cut at {n}", data[:n]) for n in sorted(lengths) if 0 < n < len(data)]
        longer = [(f"longer by {n}", data + bytes(n)) for n in (1, 40, 64, 4096)]
        damage(storage, files, path, iter(cuts + longer + [("doubled", data * 2)]))


def test_noise_is_noticed(storage: Storage, files: dict[str, bytes]) -> None:
    """Random bytes, zeros, and the contents of other objects in an object's place."""
    chance = random.Random(3)
    for path in essential(files):
        size = len(files[path])
        noise = [("noise", chance.randbytes(n)) for n in (1, 7, size, size, 1 << 20)]
        zeros = [("zeros", bytes(n)) for n in (size, 1 << 20)]
        wrong = [other for other in files if files[other] != files[path]]
        others = [(f"content of {other}", files[other]) for other in wrong]
        damage(storage, files, path, iter(noise + zeros + others))


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_segment_in_the_place_of_another_is_noticed(form: str) -> None:
    """A sound segment of the same size is still not the one that was committed."""
    storage = fresh_storage("memory", Path())
    stream = create_on(storage, events(0, 0).schema)
    for start in range(10, 50):
        layout = Layout(compression="none", inline_bytes=0, segment_format=form)
        stream.append(events(start, start + 1), layout=layout)
    sizes: dict[int, list[str]] = {}
    for entry in stream._log.root.entries:
        sizes.setdefault(entry.bytes, []).append(f"segments/{entry.path}")
    first, second, *_ = max(sizes.values(), key=len)
    storage.put(second, storage.get(first))
    with pytest.raises(CorruptionError, match="not the one that was committed"):
        content_on(storage)
    problems = open_on(storage).verify().problems
    assert [problem.where for problem in problems] == [second]
    discard(storage)


def test_emptied_object_is_its_own_error(storage: Storage, files: dict[str, bytes]) -> None:
    """An object without bytes is not missing, not corrupt, and never "no segments"."""
    from fsspec.implementations.memory import MemoryFileSystem

    right = content_on(storage)
    for path in essential(files):
        MemoryFileSystem().pipe_file(f"{storage.location.path}/{path}", b"")
        if kind_of(path) == "newest":
            with pytest.raises(EmptyObjectError):
                content_on(storage)
        elif kind_of(path) == "segment":
            with pytest.raises(FormatError):
                content_on(storage)
        else:
            check(storage, path, right, f"{path}: emptied")
        storage.put(path, files[path])


def test_removed_object_is_missing(storage: Storage, files: dict[str, bytes]) -> None:
    """What metadata names and is not there is an error that names it."""
    right = content_on(storage)
    # An open lists the log from the hint on, so it meets a gap behind the hint; `verify` meets all.
    storage.put(HINT, NEWEST.rpartition("/")[2].encode())
    for path in essential(files):
        storage.delete(path)
        if kind_of(path) == "segment":
            with pytest.raises(MissingObjectError, match=path.rpartition("/")[2]):
                content_on(storage)
        elif path != NEWEST:
            check(storage, path, right, f"{path}: removed")
        if kind_of(path) in ("older", "part"):
            assert path in [problem.where for problem in verify_on(storage).problems]
        if path != HINT:
            storage.put(path, files[path])


def test_removed_newest_commit_is_reported(storage: Storage) -> None:
    """The hint is not trusted for reading, but `verify` says that it knows of a later commit."""
    storage.put(HINT, NEWEST.rpartition("/")[2].encode())
    storage.delete(NEWEST)
    report = open_on(storage).verify()
    assert [problem.where for problem in report.problems] == [HINT]
    assert NEWEST.rpartition("/")[2] in report.problems[0].what


def test_newest_root_never_falls_back(storage: Storage, files: dict[str, bytes]) -> None:
    """With the newest root damaged anywhere, no older version is opened, read or built upon."""
    rng = random.Random(5)
    for place in rng.sample(range(len(files[NEWEST])), 60):
        data = bytearray(files[NEWEST])
        data[place] ^= 1 << rng.randrange(8)
        storage.put(NEWEST, bytes(data))
        for hint in (b"00000000000000000005", b"00000000000000000004", b"0"):
            storage.put(HINT, hint)
            with pytest.raises(FormatError, match=NEWEST.rpartition("/")[2]):
                open_on(storage)


def test_handle_meets_a_damaged_newer_root(storage: Storage, files: dict[str, bytes]) -> None:
    """A handle that stood on the version before refuses to read on and to append."""
    storage.delete(NEWEST)
    storage.put(HINT, b"00000000000000000004")
    stream = open_on(storage)
    storage.put(NEWEST, files[NEWEST][:-1])
    for call in (stream.read, stream.refresh, lambda: stream.append(events(8, 9))):
        with pytest.raises(FormatError, match="SEG_TRUNCATED_OBJECT"):
            call()
    storage.put(NEWEST, files[NEWEST])
    assert stream.refresh().tail == ROWS


def test_damaged_frame_is_named_and_hides_no_neighbour(
    storage: Storage, files: dict[str, bytes]
) -> None:
    """Each byte of one frame changed: that frame is named exactly, ranges beside it are read."""
    stream = open_on(storage)
    entry = stream._log.root.entries[-1]
    path = f"segments/{entry.path}"
    data = files[path]
    frames = open_segment(storage, entry).frames
    assert len(frames) == 4
    first = stream.tail - entry.rows
    right = stream.read().read_all()
    for number, frame in enumerate(frames):
        offset = first + number
        name = f"{path}[{frame.start}:{frame.end}]"
        for place in range(frame.start, frame.end, 5):
            changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
            storage.put(path, changed)
            with pytest.raises(CorruptionError) as caught:
                open_on(storage).read(read_cache_bytes=0).read_all()
            assert str(caught.value.fields["where"]).endswith(name)
            before, behind = (
                stream.read(*cuts, read_cache_bytes=0).read_all()
                for cuts in ((0, offset), (offset + 1,))
            )
            assert before.equals(right.slice(0, offset))
            assert behind.equals(right.slice(offset + 1))
        report = open_on(storage).verify()
        assert [problem.where for problem in report.problems] == [name]
    storage.put(path, data)


def test_errors_are_typed_for_a_damaged_stream_on_disk(
    files: dict[str, bytes], tmp_path: Path
) -> None:
    """The same on a disk: folders, links and pipes in an object's place are no surprise either."""
    import os

    storage = restore(fresh_storage("local", tmp_path), files)
    root = Path(storage.url.removeprefix("file://"))
    right = content_on(storage)
    for path in essential(files):
        if path.startswith("log/0"):
            continue  # as if it had been removed
        target = root / path
        for what in ("folder", "dangling link", "pipe", "link to itself"):
            target.unlink()
            if what == "folder":
                target.mkdir()
            elif what == "pipe":
                os.mkfifo(target)
            else:
                target.symlink_to("nowhere" if what == "dangling link" else target.name)
            with suppress(SegstoreError):
                assert content_on(storage) == right, f"{path}: {what}"
            if target.is_dir():
                target.rmdir()
            else:
                target.unlink()
            storage.put(path, files[path])
    assert content_on(storage) == right


@pytest.fixture
def inline() -> Iterator[Storage]:
    """Return a storage with a stream of a segment between three inline ones of two events."""
    storage = fresh_storage("memory", Path())
    time = VirtualTime(5)
    stream = create_on(TimedStorage(storage, time), events(0, 0).schema, clock=time.clock)
    for start in (0, 2, 4, 6):
        layout = Layout(inline_bytes=0) if start == 4 else Layout(compression="none")
        stream.append(events(start, start + 2), layout=layout)
    inline = [entry.frame is not None for entry in stream._log.root.entries]
    assert inline == [True, True, False, True]
    yield storage
    discard(storage)


def _read(storage: Storage, *cuts: int) -> pa.Table:
    return open_on(storage).read(*cuts).read_all()


def test_every_flipped_byte_hurts_its_own_frame_alone(inline: Storage) -> None:
    """A byte of a frame hides the events of that frame, any other byte the version."""
    storage, newest = inline, "log/00000000000000000004"
    data = storage.get(newest)
    right = _read(storage)
    root = open_on(storage)._log.root
    behind = len(data) - root.inline_bytes
    starts, cursor, offset = [], behind, 0
    for entry in root.entries:
        if entry.frame:
            starts.append((cursor, offset, entry.path))
            cursor += len(entry.frame.data)
        offset += entry.rows
    for place in range(0, len(data), 3):
        changed = bytes([data[place] ^ (1 << place % 8)])
        storage.put(newest, data[:place] + changed + data[place + 1 :])
        if place < behind:
            with pytest.raises(FormatError, match=newest):
                open_on(storage)
            continue
        _, first, path = max(start for start in starts if start[0] <= place)
        assert _read(storage, 0, first).equals(right.slice(0, first)), place
        assert _read(storage, first + 2).equals(right.slice(first + 2)), place
        with pytest.raises(CorruptionError, match=f"{newest}: segments/{path}"):
            _read(storage, first, first + 1)
        if place % 7 == 0:
            (problem,) = open_on(storage).verify().problems
            assert problem.where.startswith(f"{newest}: segments/{path}[0:")
    storage.put(newest, data)
    assert _read(storage).equals(right)


@pytest.fixture(scope="module", params=["arrow", "parquet"])
def everything(request: pytest.FixtureRequest) -> Everything:
    """Return a stream that has an object of every kind."""
    return make_everything(request.param)


@pytest.mark.parametrize("ways", [1, pytest.param(len(WAYS), id="all", marks=pytest.mark.sweep)])
def test_verify_names_every_object_that_a_read_needs_and_repair_tells_the_truth(
    everything: Everything, ways: int
) -> None:
    """Objects flipped, cut, lengthened, emptied and deleted: in a sweep each in all ways.

    What verify does not name, no read, reader or table needs, nor any one status object. Metrics
    and the page never fail. After a repair all is sound, or the report lists all that is not.
    """
    paths = sorted(everything.files)
    for number, path in enumerate(paths if ways > 1 else some_of_each_kind(paths)):
        for way in (WAYS * 2)[number % len(WAYS) :][:ways]:
            storage, time = everything.open()
            spoil(storage, path, way)
            named = {*named_in(p.where for p in verify_on(storage, clock=time.clock).problems)}
            if names.is_status(path) or not named & {path, path.rpartition("/")[0]}:
                check_unneeded(everything, storage, path, way)
            if object_kind(path) != "log":
                stream = open_on(storage)
                assert stream.metrics(storage=True).tail == stream.tail
                assert stream.picture(storage=True).to_html()
            check_repair(everything, storage, time, f"{path}: {way}")


def some_of_each_kind(paths: list[str]) -> Iterator[str]:
    """Yield up to five objects of each kind, from the oldest to the newest.

    With Parquet segments only kinds that differ from those with Arrow segments.
    """
    kinds: dict[str, list[str]] = {}
    for path in paths:
        kinds.setdefault(object_kind(path), []).append(path)
    parquet = any(path.endswith(".parquet") for path in kinds["segment"])
    for kind, found in kinds.items():
        if not parquet or kind in ("segment", "part", "delta", "iceberg", "own file"):
            last = len(found) - 1
            few = min(5, len(found))
            yield from (found[last * n // max(few - 1, 1)] for n in range(few))


def check_unneeded(everything: Everything, storage: Storage, path: str, way: str) -> None:
    """Check that all reads answer as before without an object that verify did not name."""
    answers = ask_all(storage)
    wrong = {what for what, right in everything.answers.items() if answers.get(what) != right}
    if answers["storage"] != "error":
        wrong.discard("storage")  # it counts what lies there
    if way == "gone" and object_kind(path) in ("delta", "iceberg"):
        wrong -= {object_kind(path)}  # without its newest commit a table shows the version before
    assert not wrong, f"{path}: {way}"


def check_repair(everything: Everything, storage: Storage, time: VirtualTime, what: str) -> None:
    """Check that a repair mends a stream, or lists everything that verify finds afterwards."""
    try:
        done = repair_on(storage, clock=time.clock)
    except CorruptionError:  # the newest commit
        done = repair_on(storage, clock=time.clock, allow_loss=True)
        assert [*done.lost], what
    left = verify_on(storage, clock=time.clock)
    assert done.ok == left.ok, what
    for problem in left.problems:
        (text,) = [text for text in done.damaged if text.startswith(problem.where)]
        assert "segstore " in text or "allow_loss=True" in text, what
    if left.ok and not done.lost:
        answers, events = ask_all(storage), open_on(storage).read().read_all().to_pylist()
        for asked, right in everything.answers.items():
            if asked in ("delta", "iceberg") and answers[asked] != right:
                # Published again, or its last commit is lost and it is as before that.
                shown_rows = answers[asked][1]
                assert shown_rows == events[: len(shown_rows)], (what, asked)
                assert len(shown_rows) >= len(right[1]) or what.endswith("gone"), (what, asked)
            elif asked not in ("open", "history", "info", "storage"):  # a repair may be a commit
                assert answers[asked] == right, (what, asked)
