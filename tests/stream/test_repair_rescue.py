"""What repair puts back and salvage finds, and that neither says more than was read back."""

import uuid

import pytest
from stream_kit import SOFT, TIGHT, make_stream, numbers, objects, values, wait
from virtual_time import TimedStorage

from segstore_ds.errors import MissingObjectError
from segstore_ds.format import names
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.rescue import repair as repair_on
from segstore_ds.stream.rescue import salvage as salvage_on


def lose(storage, path):
    storage.delete(path)


def cut(storage, path):
    storage.put(path, storage.get(path)[:-5])


def fix(stream, **options):
    return repair_on(stream._log.storage, clock=stream._log.clock, **options)


def again(stream):
    return open_on(stream._log.storage, clock=stream._log.clock)


def salvaged(stream):
    new = TimedStorage(open_storage(f"memory://{uuid.uuid4().hex}"), stream._log.storage.time)
    report = salvage_on(stream._log.storage, new, skip_damaged=True, clock=stream._log.clock)
    return report, values(open_on(new))


@pytest.mark.usefixtures("no_inline")
def test_salvage_reads_what_a_compaction_replaced():
    """The newest version lists one damaged segment, an older one its inputs."""
    stream, storage = make_stream(6)
    stream.compact()
    (entry,) = stream._log.root.entries
    cut(storage, f"segments/{entry.path}")
    expected = [*range(60)]
    report, found = salvaged(stream)
    assert (found, report.lost, report.rows) == (expected, [], 60)
    inputs = sorted(objects(storage, "segments") - {f"segments/{entry.path}"})
    lose(storage, inputs[2])
    report, found = salvaged(stream)
    lost = [(loss.start, loss.end, loss.where) for loss in report.lost]
    assert lost == [(20, 30, f"segments/{entry.path}")]
    assert found == [n for n in expected if not 20 <= n < 30]


def lose_both(storage, path):
    """Lose a status object and its twin."""
    for name in names.both_names(path):
        lose(storage, name)


@pytest.mark.usefixtures("no_inline")
def test_salvage_works_without_a_part_and_the_newest_schema(monkeypatch):
    """Both objects are lost under both names: older versions and segments tell them."""
    monkeypatch.setattr(SOFT, 3)
    monkeypatch.setattr("segstore_ds.status.epochs.SCHEMA_INLINE_BYTES", 10)
    stream, storage = make_stream(9)
    part, blob = stream._log.root.parts[0], stream._log.root.epochs[0].blob
    lose_both(storage, part.path)
    for name in names.both_names(blob.path):
        cut(storage, name)
    told = fix(stream).damaged
    for name in (*names.both_names(part.path), *names.both_names(blob.path)):
        (text,) = [text for text in told if text.startswith(name)]
        assert "restore the object from a backup, or copy the rest: segstore salvage" in text
    report, found = salvaged(stream)  # the commit that wrote the part added its last events
    assert [(loss.start, loss.end) for loss in report.lost] == [(30, 40)]
    assert found == [*range(30), *range(40, 90)]
    for version in range(1, 5):
        lose(storage, f"log/{version:020d}")
    report, found = salvaged(stream)
    assert [(loss.start, loss.end, loss.where) for loss in report.lost] == [
        (0, part.end, part.path)
    ]
    assert found == [*range(part.end, 90)]


@pytest.mark.usefixtures("no_inline")
def test_follower_has_what_is_lost_under_both_names(monkeypatch):
    """Repair copies object and twin from there."""
    monkeypatch.setattr(SOFT, 3)
    stream, storage = make_stream(9)
    stream.followers.add(f"memory://{uuid.uuid4().hex}")
    path = stream._log.root.parts[0].path
    lose_both(storage, path)
    with pytest.raises(MissingObjectError, match=path.rpartition("/")[2]):
        values(again(stream))
    report = fix(stream)
    assert report.ok
    assert {text.split()[0] for text in report.repaired} >= {*names.both_names(path)}
    assert values(again(stream)) == [*range(90)]


@pytest.mark.usefixtures("no_inline")
def test_clone_puts_a_shared_object_into_its_own_folder(monkeypatch):
    """The origin lost one name of it; its own repair brings it back there."""
    monkeypatch.setattr(SOFT, 3)
    stream, storage = make_stream(9)
    url = f"memory://{uuid.uuid4().hex}"
    stream.copy_to(url, copy_id="c", mode="clone")
    clone = open_on(TimedStorage(open_storage(url), storage.time), clock=stream._log.clock)
    path = stream._log.root.parts[0].path
    lose(storage, path)
    for one in (clone, stream):
        assert f"{path} from {names.twin_of(path)}" in fix(one).repaired
        again(one).verify().check()
        assert values(again(one)) == [*range(90)]


@pytest.mark.usefixtures("no_inline")
def test_deletion_that_stops_between_two_names_goes_on(monkeypatch):
    """The twin of a dropped part is deleted first: without it the part is not damaged."""
    for name, value in TIGHT.items():
        monkeypatch.setattr(name, value)
    stream, storage = make_stream(9)
    stream.truncate(85)
    (item,) = [each for each in stream._log.root.retired if each.kind == "part"]
    wait(storage, 3 * 86_400)
    stream.append(numbers(90, 91))
    wait(storage, 7_200)
    stream.maintain(keep=3_600)
    lose(storage, names.twin_of(item.path))
    again(stream).verify().check()
    wait(storage, 2 * 86_400)
    stream.maintain(grace=86_400)
    assert not objects(storage) & {*names.both_names(item.path)}
    again(stream).verify().check()
