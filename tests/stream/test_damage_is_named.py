"""Damage that no read of the newest version meets: verify names it, and repair says what stays."""

from contextlib import suppress

import pytest
from publish_kit import DELTA, TABLES
from stream_kit import TIGHT, fresh_url, make_stream, numbers, objects, values, wait
from wrapped_storage import WrappedStorage

import segstore_ds as segstore
from segstore_ds.errors import CorruptionError, FormatError, InvalidInputError
from segstore_ds.format import names
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.rescue import repair as repair_on
from segstore_ds.stream.rescue import salvage as salvage_on
from segstore_ds.stream.rescue import verify as verify_on
from segstore_ds.write.layout import Layout


def log_file(version: int) -> str:
    return f"log/{version:020d}"


def flip(storage, path, place=-9):
    data = bytearray(storage.get(path))
    data[place] ^= 1
    storage.put(path, bytes(data))


def again(stream):
    return open_on(stream._log.storage, clock=stream._log.clock)


def fix(stream, **options):
    return repair_on(stream._log.storage, clock=stream._log.clock, **options)


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_a_damaged_frame_names_its_offsets(form):
    """The other frames can still be read by theirs."""
    stream, storage = make_stream(0)
    layout = Layout(inline_bytes=0, segment_format=form, frame_rows=10)
    for start in (0, 40):
        stream.append(numbers(start, start + 40), layout=layout)
    frames = stream.metadata("frames").read_all().to_pylist()
    for frame in (frames[5], frames[6]):
        flip(storage, frame["path"], frame["place"] + frame["bytes"] // 2)
    for columns in (None, ["n", "s"]):
        with pytest.raises(CorruptionError, match=r"offsets='\[50, 60\)'"):
            stream.read(columns=columns, read_cache_bytes=0).read_all()
    first, second = stream.verify().problems
    assert ("'[50, 60)'" in first.what, "'[60, 70)'" in second.what) == (True, True)
    assert values(stream, 0, 50) == [*range(50)]
    assert values(stream, 70, 80) == [*range(70, 80)]
    storage.delete(frames[5]["path"])
    (gone,) = stream.verify().problems
    assert gone.what.endswith("offsets='[40, 80)'")


@pytest.mark.usefixtures("no_inline")
def test_segments_of_older_versions_are_looked_at():
    """A kept version lists what a compaction replaced; the newest one does not need it."""
    stream, storage = make_stream(4)
    version = stream.version
    old = f"segments/{stream._log.root.entries[1].path}"
    stream.compact()
    flip(storage, old, 100)
    assert values(again(stream)) == list(range(40))
    with pytest.raises(FormatError):
        values(again(stream), as_of=version)
    problems = again(stream).verify().problems
    assert [problem.where.partition("[")[0] for problem in problems] == [old]
    assert [problem.version for problem in problems] == [version]
    (text,) = fix(stream).damaged
    kept = stream.version - version
    assert f"segstore maintain {storage.url} --keep 1h --min-versions {kept}" in text
    again(stream).append(numbers(40, 41))
    wait(storage, 2 * 3600)
    again(stream).maintain(keep=3600, min_versions=kept)
    assert fix(stream).ok


@pytest.mark.usefixtures("no_inline")
def test_what_a_purged_version_needed_is_no_damage():
    """Vacuum deletes it, and verify does not ask for it."""
    stream, storage = make_stream(4)
    stream.compact()
    wait(storage, 30 * 86_400)
    stream.append(numbers(40, 41))
    wait(storage, 86_400)
    stream.append(numbers(41, 42))
    stream.maintain(keep=3600)
    assert stream.maintain(grace="7d").deleted
    again(stream).verify().check()


@pytest.mark.usefixtures("no_inline")
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.kind)
def test_damaged_metadata_of_a_published_table_breaks_no_figure(table):
    """Metrics and the page say so, and what repair advises works."""
    stream, storage = make_stream(3)
    stream.append(numbers(30, 60), layout=Layout(inline_bytes=0, segment_format="parquet"))
    table.publish(stream, settle=True)
    path = f"_delta_log/{0:020}.json" if table is DELTA else "metadata/v1.metadata.json"
    storage.put(path, b"{}")
    seen = again(stream)
    assert seen.metrics().events == 60
    assert [path in text for text in seen.metrics().damaged] == [True]
    assert path in seen.picture().to_html()
    (text,) = fix(stream).damaged
    assert text.startswith(path)
    assert f"segstore publish {storage.url} --format {table.kind}" in text
    if table is DELTA:  # only its one commit says whose the table is
        assert f"delete {storage.url}/_delta_log by hand" in text
        with pytest.raises(InvalidInputError, match="by hand"):
            again(stream).published.remove(table.kind)
        for info in list(storage.list("_delta_log")):
            storage.delete(info.path)
    else:
        assert "--remove" in text
        again(stream).published.remove(table.kind)
    assert again(stream).publish(table.kind, settle=True).lag == 0
    assert again(stream).verify().ok


@pytest.mark.usefixtures("no_inline")
def test_pictures_show_the_rest_and_name_what_is_damaged(monkeypatch):
    """One part of the status, of the history or a schema, damaged under both names."""
    for name, value in TIGHT.items():
        monkeypatch.setattr(name, value)
    monkeypatch.setattr("segstore_ds.status.table.HISTORY.rows", 2)
    monkeypatch.setattr("segstore_ds.status.epochs.SCHEMA_INLINE_BYTES", 10)
    stream, storage = make_stream(9)
    for n in range(4):
        stream.tags.set(f"t{n}", n)
    reader = stream.readers.register("r")
    reader.publish(1)
    root = stream._log.root
    blobs = (root.epochs[0].blob,)
    for ref in (*root.parts, *root.history_parts, *blobs, *root.retired_parts):
        sound = storage.get(ref.path)
        for path in names.both_names(ref.path):
            storage.put(path, sound[:-3])
        seen = again(stream)
        assert seen.metrics(storage=True).tail == 90
        assert ref.path in seen.picture(storage=True).to_html()
        for path in names.both_names(ref.path):
            storage.put(path, sound)
    assert "be read and is left out" not in again(stream).picture().to_html()
    assert again(stream).metrics(storage=True).damaged == ()


@pytest.mark.parametrize("at", [8, 9, 400])
def test_old_commit_file_behind_a_gap_is_moved_out_of_the_log(at):
    """It blocks the appends that come to its number; what it holds stays."""
    stream, storage = make_stream(6)
    old = storage.get(log_file(3))
    storage.put(log_file(at), old)
    problems = verify_on(storage, clock=stream._log.clock).problems
    assert log_file(at) in [problem.where for problem in problems]
    report = fix(stream)
    assert (report.ok, [*report.lost], report.generation) == (True, [], 0)
    assert log_file(at) not in objects(storage)
    (aside,) = objects(storage, "aside")
    assert storage.get(aside) == old
    seen = again(stream)
    for start in (60, 70, 80):
        seen.append(numbers(start, start + 10))
    assert values(again(stream)) == list(range(90))
    again(stream).verify().check()


class _Flipping(WrappedStorage):
    """The n-th read of a file has a wrong bit in its last bytes."""

    def __init__(self, inner: Storage, path: str, nth: int) -> None:
        super().__init__(inner)
        self.path, self.nth = path, nth

    def around(self, verb, path, work):  # noqa: ARG002
        answer = work()
        self.nth -= path == self.path and isinstance(answer, bytes)
        if self.nth or path != self.path or not isinstance(answer, bytes):
            return answer
        return answer[:-30] + bytes([answer[-30] ^ 1]) + answer[-29:]


def test_file_is_moved_aside_as_it_is() -> None:
    """Also if a read of it has a wrong bit; then it stays, or is moved by the next call."""
    for nth in range(1, 9):
        stream, storage = make_stream(6)
        old = storage.get(log_file(3))
        storage.put(log_file(9), old)
        with suppress(CorruptionError):  # which refuses what may be a lost commit
            repair_on(_Flipping(storage, log_file(9), nth), clock=stream._log.clock)
        (left,) = objects(storage, "aside") or {log_file(9)}
        assert storage.get(left) == old


def test_commit_file_of_another_stream_is_moved_out_of_the_log():
    """It decodes and has its own number, but the hint leads to this stream."""
    stream, storage = make_stream(6)
    stream._log.write_hint(stream._log.root)
    other, theirs = make_stream(9, seed=2)
    storage.put(log_file(9), theirs.get(log_file(9)))
    assert fix(stream).ok
    assert (
        again(stream)._log.root.stream_id == stream._log.root.stream_id != other._log.root.stream_id
    )
    assert again(stream).append(numbers(60, 61)).start == 60


def test_lost_version_is_listed_with_the_command_that_ends_it():
    """Nothing but reads of versions before it need it: they are forgotten on request."""
    stream, storage = make_stream(6)
    storage.delete(log_file(3))
    (text,) = fix(stream).damaged
    assert text.startswith(log_file(3))
    assert f"segstore repair {storage.url} --allow-loss" in text
    report = fix(stream, allow_loss=True)
    assert (report.ok, [*report.lost], report.generation) == (True, [], 0)
    assert values(again(stream)) == list(range(60))


@pytest.mark.usefixtures("no_inline")
@pytest.mark.parametrize("how", ["flipped", "lost"])
def test_repair_is_not_ok_beside_a_damaged_segment(how, tmp_path):
    """Though it mended the hint."""
    stream = segstore.create(tmp_path / "s", numbers(0, 0).schema)
    stream.append(numbers(0, 100))
    path = f"segments/{stream._log.root.entries[0].path}"
    stream._log.storage.put("log/_latest", b"x")
    if how == "lost":
        stream._log.storage.delete(path)
    else:
        flip(stream._log.storage, path, 200)
    report = segstore.repair(stream.url)
    assert report.repaired == ["the hint"]
    assert not report.ok
    assert path in report.damaged[0]
    assert f"segstore salvage {stream.url} NEW_URL --skip-damaged" in report.damaged[0]


@pytest.mark.usefixtures("no_inline")
def test_lost_commits_that_names_of_objects_alone_prove():
    """The hint is gone with them: the report has the versions, and loss has to be allowed."""
    stream, storage = make_stream(6)
    storage.delete("log/_latest")
    for version in (5, 6):
        storage.delete(log_file(version))
    with pytest.raises(CorruptionError, match="lost=1, first=5, last=5"):
        fix(stream)
    report = fix(stream, allow_loss=True)
    assert ([*report.lost], report.version, report.generation) == ([5], 5, 1)
    assert again(stream).append(numbers(40, 41)).start == 40


@pytest.mark.usefixtures("no_inline")
def test_salvage_names_the_damage():
    """And not how generators are read."""
    stream, storage = make_stream(3)
    path = f"segments/{stream._log.root.entries[1].path}"
    flip(storage, path, 100)
    new = open_storage(fresh_url())
    with pytest.raises(CorruptionError, match=f"{path}.*skip_damaged=True") as told:
        salvage_on(storage, new, clock=stream._log.clock)
    assert "generator" not in str(told.value)


def test_damage_beside_an_unreadable_newest_commit_is_named():
    """All of it is, so that one look says what is left."""
    stream, storage = make_stream(4)
    storage.put(log_file(4), b"x")
    storage.put(log_file(2), b"x")
    found = [problem.where for problem in stream.verify().problems]
    assert {log_file(4), log_file(2)} <= {*found}
