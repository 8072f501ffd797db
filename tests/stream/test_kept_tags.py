"""Tags that keep a version: what it shows stays as it was, until the tag goes."""

import pyarrow as pa
import pytest
from source_kit import load
from stream_kit import DAY, TIGHT, make_stream, numbers, objects, values, wait

import segstore_ds as segstore
from segstore_ds.errors import (
    AlreadyExistsError,
    InvalidInputError,
    MissingObjectError,
    NotFoundError,
    SnapshotExpiredError,
)
from segstore_ds.repair.repair import run_repair
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

KEEP = {"as_of": "tag:v1"}


def forget(stream: Stream) -> None:
    """Delete all that deletion may ever delete."""
    for _ in range(2):
        wait(stream._log.storage, 30 * DAY)
        stream.maintain(keep="1h", grace=DAY)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    """Return a stream of thirty events with a kept tag, whose events and columns are gone since."""
    for name, value in TIGHT.items():
        monkeypatch.setattr(name, value)
    made, _ = make_stream(3)
    made.tags.set("v1", keep=True)
    for start in range(30, 80, 10):
        made.append(numbers(start, start + 10))
    made.compact()
    made.change_schema(rename={"n": "number"})
    made.overwrite(pa.table({"number": [7], "s": ["seven"]}))
    made.truncate("tail")
    forget(made)
    return made


def test_kept_version_stays_as_it_was(stream: Stream) -> None:
    """By its tag and by its number, after all else was forgotten; and nothing is left over."""
    version = stream.tags["v1"].version
    assert stream._log.root.log_start > version
    seen = open_on(stream._log.storage, clock=stream._log.clock)
    for as_of in ("tag:v1", version):
        assert seen.scan(as_of=as_of, offset_column="o").to_arrow().to_pydict() == {
            **numbers(0, 30).to_pydict(),
            "o": [*range(30)],
        }
    assert values(seen, "head", 12, as_of="tag:v1", filters="n > 9") == [10, 11]
    with pytest.raises(SnapshotExpiredError):
        seen.scan(as_of=version + 1)
    report = seen.verify()
    assert (report.ok, report.leftovers) == (True, [])
    (row,) = seen.metadata("tags").read_all().to_pylist()
    listed = seen.metadata("segments", as_of="tag:v1").read_all()
    assert row["kept_bytes"] == sum(listed["bytes"].to_pylist()) > 0
    assert seen.info()["pinned_version"] == version


def test_removed_tag_frees_what_it_kept(stream: Stream) -> None:
    """So does a tag that moved: of the stream only what is listed stays."""
    storage = stream._log.storage
    with pytest.raises(AlreadyExistsError, match="move=True"):
        stream.tags.set("v1", keep=True)
    before = stream.tags["v1"]
    stream.tags.set("v1", keep=True, move=True)
    forget(stream)
    with pytest.raises(SnapshotExpiredError):
        stream.scan(as_of=before.version)
    assert stream.scan(**KEEP).count() == 0
    stream.tags.delete("v1")
    forget(stream)
    with pytest.raises(NotFoundError, match="no such tag"):
        stream.scan(**KEEP)
    assert objects(storage, "segments") == set()
    assert stream.verify().leftovers == []


def test_kept_version_is_restored_and_cloned(stream: Stream) -> None:
    """By its number, as any version that is there."""
    version = stream.tags["v1"].version
    stream.copy_to("memory://cloned", copy_id="c", mode="clone", version=version)
    stream.restore(version)
    assert values(stream) == values(segstore.open("memory://cloned")) == [*range(30)]
    stream.tags.delete("v1")
    stream.truncate("tail")
    forget(stream)
    assert values(segstore.open("memory://cloned")) == [*range(30)]


def test_missing_object_of_a_kept_version_is_named(stream: Stream) -> None:
    """By a read and by `verify`, though the version's commit file is forgotten."""
    (name,) = stream.metadata("segments", **KEEP).read_all()["path"].to_pylist()
    (path,) = (each for each in objects(stream._log.storage, "segments") if each.endswith(name))
    stream._log.storage.delete(path)
    with pytest.raises((MissingObjectError, SnapshotExpiredError)):
        values(stream, **KEEP)
    (problem,) = stream.verify().problems
    assert (problem.where, problem.version) == (path, stream.tags["v1"].version)
    (advice,) = run_repair(stream._context, allow_loss=False).damaged
    assert advice.endswith("v1 --delete")


def test_nothing_is_erased_while_a_tag_keeps_it() -> None:
    """A redaction and rules of expiry name the tags; with such rules nothing is kept."""
    stream, _ = make_stream(1)
    stream.tags.set("v1", keep=True)
    for erase in (
        lambda: stream.redact("n == 3", columns=["s"]),
        lambda: stream.settings.update(expiry={"s": "30d"}),
    ):
        with pytest.raises(InvalidInputError, match=r"tags=\['v1'\]; .*tags.delete"):
            erase()
    stream.tags.delete("v1")
    stream.settings.update(expiry={"s": "30d"})
    with pytest.raises(InvalidInputError, match="expiring"):
        stream.tags.set("v1", keep=True)


def test_only_a_whole_version_is_kept() -> None:
    """A cut below the tail is none, a tag of a cut keeps nothing, and a clone must be whole."""
    stream, _ = make_stream(2)
    with pytest.raises(InvalidInputError, match="leave out the cut"):
        stream.tags.set("v1", 3, keep=True)
    stream.tags.set("v1")
    with pytest.raises(InvalidInputError, match="keep=True"):
        stream.scan(**KEEP)
    kept = stream.tags.set("v1", keep=True)  # the same cut, so it may
    assert stream.tags.set("v1", keep=True) == stream.tags.set("v1") == kept
    stream.append(numbers(20, 30))
    assert stream.retain(max_bytes=0).head == 30  # which the tag does not hold back
    assert values(stream, **KEEP) == [*range(20)]
    stream.copy_to("memory://cloned-again", copy_id="c", mode="clone")
    with pytest.raises(InvalidInputError, match="materialize"):
        segstore.open("memory://cloned-again").tags.set("v1", keep=True)


def test_copies_of_the_folder_have_the_kept_version(stream: Stream) -> None:
    """A follower that is added later and promoted, and a backup; Spark reads it by the tag, too."""
    stream.followers.add("memory://kept-follower")
    stream.back_up("memory://kept-backup")
    promoted = segstore.open("memory://kept-follower")
    promoted.followers.promote()
    for copy in (promoted, segstore.open("memory://kept-backup")):
        assert values(copy, **KEEP) == [*range(30)]
        assert copy.verify().ok
    assert load("memory://kept-backup", versionAsOf="tag:v1").count() == 30
