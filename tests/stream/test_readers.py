"""Named readers: who may publish, what is held back, and what a lapse means."""

from functools import partial

import pytest
from stream_kit import DAY, HOUR, SCHEMA, Meddling, make_stream, numbers, objects, values, wait

from segstore_ds.errors import (
    CorruptionError,
    FormatError,
    InvalidInputError,
    MissingObjectError,
    NotFoundError,
    PositionError,
    ReaderConflictError,
    TruncatedError,
    UnsupportedVersionError,
)
from segstore_ds.format.envelope import encode_envelope
from segstore_ds.format.reader_record import ReaderRecord, decode_record, encode_record
from segstore_ds.log.newest import CONFIRM_S
from segstore_ds.read.reader_records import live_readers
from segstore_ds.retention.drop import run_drop
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on


def held(stream):
    """Return what readers hold back now."""
    now_us = stream._log.store_now_us()
    return {
        seen.name: seen.needs(stream._log.root) for seen in live_readers(stream._context, now_us)
    }


def test_reader_starts_at_the_head_and_resumes():
    """A new handle of the same owner finds the position that was published."""
    stream, storage = make_stream(3)
    reader = stream.readers.register("etl", owner="a")
    assert reader.offset == 0
    reader.publish(12)
    reader.publish(7)  # an earlier one changes nothing
    again = open_on(storage, clock=stream._log.clock).readers.register("etl", owner="a")
    assert again.offset == 12
    assert values(stream, "reader:etl") == list(range(12, 30))
    assert held(stream) == {"etl": 12}
    assert stream.readers["etl"].record.offset == 12
    open_on(storage, clock=stream._log.clock).append(numbers(30, 40))
    again.publish(40)  # it looks for a newer tail before it calls a position wrong
    assert "etl" in stream.readers
    assert "x" not in stream.readers
    with pytest.raises(NotFoundError, match="no such reader"):
        stream.readers["x"]


def test_busy_reader_lists_its_records_once_a_second():
    """Those of five seconds are kept, and a listing of all of them takes longer than a record."""
    stream, storage = make_stream(3)
    reader = stream.readers.register("etl")
    listed = storage.stats.requests["list"]
    for _ in range(200):
        reader.publish(7)
        wait(storage, 0.001)
    assert storage.stats.requests["list"] <= listed + 1
    for _ in range(200):
        reader.publish(7)
        wait(storage, 1.0)
    assert len(objects(storage, "readers/etl")) <= 5 + 8 + 2 * 16


def test_reader_that_publishes_seldom_looks_at_its_last_record_and_lists_none():
    stream, storage = make_stream(3)
    reader = stream.readers.register("etl")
    listed = storage.stats.requests["list"]
    for _ in range(5):
        wait(storage, 3.0)
        reader.publish(7)
    assert storage.stats.requests["list"] == listed


def test_reader_may_start_anywhere_between_head_and_tail():
    """Any form of cut; beyond the tail there is nothing to need."""
    stream, _ = make_stream(3)
    stream.tags.set("eod", 20)
    assert stream.readers.register("a", start="tag:eod").offset == 20
    assert stream.readers.register("b", start="tail").offset == 30
    with pytest.raises(PositionError, match="beyond the tail"):
        stream.readers.register("c", start=31)
    with pytest.raises(PositionError, match="beyond the tail"):
        stream.readers.register("a").publish(31)
    assert sorted(seen.name for seen in stream.readers) == ["a", "b"]


def test_start_below_the_head_names_the_lost_events():
    """It registers first, so that the loss is not forgotten, and asks for the head then."""
    stream, _ = make_stream(3)
    stream.truncate(10)
    with pytest.raises(TruncatedError, match=r"lost='\[4, 10\)'"):
        stream.readers.register("etl", start=4)
    assert stream.readers.register("etl", start="head").offset == 10


def test_other_owner_is_refused_unless_it_takes_over():
    """The one who was taken over notices with its next word."""
    stream, storage = make_stream(3)
    first = stream.readers.register("etl", owner="a")
    other = open_on(storage, clock=stream._log.clock)
    with pytest.raises(ReaderConflictError, match="owner='a'"):
        other.readers.register("etl", owner="b")
    second = other.readers.register("etl", owner="b", takeover=True)
    assert second.offset == 0
    for word in (lambda: first.publish(5), first.release):
        with pytest.raises(ReaderConflictError):
            word()
    second.publish(9)
    assert held(stream) == {"etl": 9}


def test_reset_ends_what_reads_by_the_name():
    """A handle of before neither publishes over the position nor releases it; a new one does."""
    stream, storage = make_stream(3)
    first = stream.readers.register("etl", owner="a")
    running = open_on(storage, clock=stream._log.clock).follow("etl", owner="a", timeout=0)
    next(running)
    stream.readers.reset("etl", 5)
    for step in (lambda: first.publish(20), first.release, lambda: next(running)):
        with pytest.raises(ReaderConflictError, match=r"offset=5.*start again"):
            step()
    again = stream.readers.register("etl", owner="a")
    assert again.offset == 5
    again.publish(7)
    stream.readers.reset("etl", "tail")
    assert stream.readers["etl"].record.resets == 2
    with pytest.raises(ReaderConflictError, match="start again"):
        again.publish(30)
    at_tail = stream.readers.register("etl", owner="a")
    back = stream.readers.register("etl", owner="a", start=10)  # goes back: a reset as well
    with pytest.raises(ReaderConflictError, match="start again"):
        at_tail.publish(30)
    onward = stream.readers.register("etl", owner="a", start=20)
    back.publish(15)
    assert (held(stream), onward.offset) == ({"etl": 20}, 20)


def test_provisional_reader_can_be_taken_until_it_publishes():
    """Of two provisional owners the later one stays, the earlier one gets an error."""
    stream, _ = make_stream(3)
    first = stream.readers.register("etl", owner="a", provisional=True)
    second = stream.readers.register("etl", owner="b", provisional=True)
    second.publish(4)
    with pytest.raises(ReaderConflictError):
        first.publish(5)
    with pytest.raises(ReaderConflictError):
        stream.readers.register("etl", owner="c")


def test_released_reader_holds_nothing_back_and_frees_its_name():
    """Its old handle does not bring it back."""
    stream, _ = make_stream(3)
    first = stream.readers.register("etl", owner="a")
    first.release()
    first.release()
    assert held(stream) == {}
    with pytest.raises(NotFoundError, match="no such reader"):
        stream.read("reader:etl")
    second = stream.readers.register("etl", owner="b", start=3)
    with pytest.raises(ReaderConflictError):
        first.publish(8)
    assert stream.readers.release("etl")
    assert not stream.readers.release("etl")
    with pytest.raises(ReaderConflictError, match="released"):
        second.publish(5)


def test_lapse_is_judged_by_the_store():
    """What has said nothing for its time holds nothing back; renewing in time keeps it."""
    stream, storage = make_stream(3)
    reader = stream.readers.register("etl", lapse_s=int(DAY))
    wait(storage, DAY - HOUR)
    assert held(stream) == {"etl": 0}
    assert reader.lapses
    reader.publish(reader.offset)
    wait(storage, DAY - HOUR)
    assert held(stream) == {"etl": 0}
    wait(storage, 2 * HOUR)
    assert held(stream) == {}


def test_possibly_lapsed_reader_registers_again():
    """Publishing late is a commit of the stream, so that a retention in flight looks again."""
    stream, storage = make_stream(3)
    reader = stream.readers.register("etl", lapse_s=int(DAY))
    version = stream.refresh().version
    reader.publish(5)
    assert stream.refresh().version == version
    wait(storage, DAY)
    reader.publish(6)
    assert stream.refresh().version == version + 1
    wait(storage, 3 * DAY)
    open_on(storage, clock=stream._log.clock).truncate(20)
    with pytest.raises(TruncatedError, match=r"lost='\[7, 20\)'"):
        reader.publish(7)


def test_failed_registration_is_repeated_by_the_next_publish():
    """A reader that believes itself registered would not notice lost events."""
    stream, storage = make_stream(3)

    def fail() -> None:
        raise InvalidInputError("on purpose")

    meddling = Meddling(storage, "create log/00000000000000000005", fail)
    reader = open_on(meddling, clock=stream._log.clock).readers.register("etl", lapse_s=60)
    wait(storage, 100)
    with pytest.raises(InvalidInputError, match="on purpose"):
        reader.publish(5)
    open_on(storage, clock=stream._log.clock).truncate(20)
    with pytest.raises(TruncatedError, match=r"lost='\[6, 20\)'"):
        reader.publish(6)


def test_damaged_record_stops_retention_and_is_shown_by_all_else():
    """One flipped bit: the error names the record and the remedy, and no picture fails."""
    stream, storage = make_stream(3)
    stream.readers.register("slow").publish(5)
    stream.readers.register("fast").publish(20)
    path = max(objects(storage, "readers/slow"))
    data = storage.get(path)
    storage.put(path, data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    with pytest.raises(CorruptionError, match=f"{path}.*readers.release"):
        stream.retain({"max_bytes": 1})
    assert stream.refresh().head == 0
    found = stream.readers
    assert [seen.name for seen in found] == ["fast"]
    assert path in str(found.damaged["slow"])
    assert "slow" in found._repr_html_()
    rows = stream.metadata("readers").read_all().to_pylist()
    assert [row["name"] for row in rows if row["damaged"]] == ["slow"]
    metrics = stream.metrics()
    assert [reader.name for reader in metrics.readers] == ["fast"]
    assert [path in text for text in metrics.damaged] == [True]
    assert path in stream.picture().to_html()
    assert path in stream._repr_html_()
    assert [path in problem.what for problem in stream.verify().problems] == [True]
    stream.readers.release("slow")
    assert stream.retain({"max_bytes": 1}).dropped == 20
    stream.verify().check()


def test_folder_that_is_no_readers_stops_those_who_ask_for_all():
    """It may be the reader of a later version."""
    stream, storage = make_stream(1)
    storage.put("readers/ä b/00000000000000000000", b"x")
    with pytest.raises(CorruptionError, match="folder does not belong to a reader"):
        held(stream)


@pytest.mark.parametrize(
    "given",
    [
        {"owner": "a" * 1001},
        {"owner": "\ud800"},
        {"owner": 5},
        {"lapse_s": 0},
        {"lapse_s": 2**63},
        {"lapse_s": 1.5},
        {"lapse_s": True},
    ],
)
def test_what_no_record_can_hold_is_refused(given):
    """Written, it could not be read again, and would stop retention for good."""
    stream, _ = make_stream(1)
    with pytest.raises(InvalidInputError, match="give"):
        stream.readers.register("etl", **given)
    reader = stream.readers.register("etl", owner="a" * 1000, lapse_s=2**63 - 1, provisional=1)
    for offset in (5.0, True, "5", None):
        with pytest.raises(InvalidInputError, match="give an int"):
            reader.publish(offset)
    reader.publish(5, provisional=1)
    assert held(stream) == {"etl": 5}
    assert stream.metadata("readers").read_all()["lapse_s"].to_pylist() == [2**63 - 1]


def spoil(storage, data):
    """Put something else in the place of the newest record."""
    path = max(objects(storage, "readers/etl"))
    storage.delete(path)
    storage.put(path, data)


@pytest.mark.parametrize("lost", ["cut", "of another stream"])
def test_reader_that_cannot_be_read_is_released_by_name(lost):
    """The unreadable record stops retention until the reader is released by name."""
    stream, storage = make_stream(3)
    stream.readers.register("etl", owner="a").publish(5)
    record = ReaderRecord("another", 0, 3, "", 60, name="etl", number=1)
    spoil(storage, b"x" if lost == "cut" else encode_envelope(encode_record(record)))
    with pytest.raises(FormatError):
        stream.retain(max_bytes=0)
    assert stream.readers.release("etl")
    assert not stream.readers.release("etl")
    assert held(stream) == {}
    assert stream.retain(max_bytes=0).head == 30
    assert stream.readers.register("etl", owner="b").offset == 30


def publish_both(stream):
    """Let a slow and a fast reader publish; return the paths of their newest records."""
    for name, offset in (("slow", 1), ("fast", 8)):
        reader = stream.readers.register(name)
        reader.publish(offset - 1)
        reader.publish(offset)
    return [f"readers/{name}/{2:020}" for name in ("slow", "fast")]


def copied(storage, slow, fast):
    """Put the fast reader's record in the place of the slow one's."""
    storage.put(slow, storage.get(fast))


def swapped(storage, slow, fast):
    """Exchange the two readers' records."""
    first, second = storage.get(slow), storage.get(fast)
    storage.put(slow, second)
    storage.put(fast, first)


def reordered(storage, slow, _fast):
    """Put the reader's own earlier record in the place of its newest one."""
    storage.put(slow, storage.get(f"readers/slow/{1:020}"))


def deleted(storage, slow, _fast):
    """Delete the newest record."""
    storage.delete(slow)


def emptied(storage, _slow, _fast):
    """Delete the reader's whole folder."""
    for path in objects(storage, "readers/slow"):
        storage.delete(path)


@pytest.mark.parametrize("damage", [copied, swapped, reordered, deleted, emptied])
def test_record_belongs_to_its_name_and_number(damage):
    """A record that is not where it was written moves no reader; everyone who asks notices."""
    stream, storage = make_stream(1)
    paths = publish_both(stream)
    assert stream.verify().ok
    damage(storage, *paths)
    other = open_on(storage, clock=stream._log.clock)
    expected = MissingObjectError if damage in (deleted, emptied) else CorruptionError
    asks = (
        lambda: other.readers.register("slow"),
        lambda: other.read("reader:slow"),
        lambda: other.retain(max_bytes=0),
    )
    for ask in asks:
        with pytest.raises(expected, match=r"readers\.release\(name\)"):
            ask()
    assert isinstance(other.readers.damaged["slow"], expected)
    report = stream.verify()
    assert "readers/slow" in {problem.where for problem in report.problems}
    assert len(report.problems) == (2 if damage is swapped else 1)
    assert other.readers.release("slow")
    assert damage is not swapped or other.readers.release("fast")
    assert stream.verify().ok
    assert other.readers.register("slow", start=0).offset == 0


def test_deleted_newest_record_is_noticed_on_disk(tmp_path):
    """The note that proves it lies in a folder of its own."""
    stream = create_on(tmp_path / "s", SCHEMA)
    stream.append(numbers(0, 10))
    stream.readers.register("etl").publish(5)
    max(tmp_path.glob("s/readers/etl/*")).unlink()
    (problem,) = open_on(tmp_path / "s").verify().problems
    assert problem.where == "readers/etl"
    with pytest.raises(MissingObjectError, match="records of a reader are gone"):
        stream.readers.register("etl")


def test_handle_that_lost_races_takes_no_number_of_a_record_that_is_gone():
    """It has read records up to the gap, but the hint proves that there was one more."""
    stream, storage = make_stream(1)
    first = stream.readers.register("etl")
    second = open_on(storage, clock=stream._log.clock).readers.register("etl")
    second.publish(3)
    second.publish(5)
    storage.delete(max(objects(storage, "readers/etl")))
    with pytest.raises(MissingObjectError, match="records of a reader are gone"):
        first.publish(7)


def test_late_release_is_done_once_although_the_record_before_it_was_damaged():
    """Whether that record still stands can't be told, so the newest one is looked for."""
    stream, storage = make_stream(1)
    reader = stream.readers.register("etl")
    wait(storage, 60.0)
    spoil(storage, b"x")
    reader.release()
    assert held(stream) == {}
    assert len(objects(storage, "readers/etl")) == 2


def test_late_note_of_a_readers_newest_record_is_no_alarm():
    """The note is written after the record, so it may be older, missing or another stream's."""
    stream, storage = make_stream(1)
    reader = stream.readers.register("etl")
    note = storage.get("readers/_latest/etl")
    reader.publish(5)
    for data in (note, b"?", note.replace(stream._log.root.stream_id.encode(), b"another")):
        storage.put("readers/_latest/etl", data)
        assert stream.readers.register("etl").offset == 5
    storage.delete("readers/_latest/etl")
    assert [seen.record.offset for seen in stream.readers] == [5]
    assert stream.verify().ok


def test_record_of_a_later_version_is_not_released_by_this_one():
    """It may mean more than this one knows."""
    stream, storage = make_stream(1)
    record = encode_record(ReaderRecord(stream._log.root.stream_id, 0, 3, "", 60, name="etl"))
    stream.readers.register("etl")
    spoil(storage, encode_envelope(record.replace(b'"format":1', b'"format":3')))
    with pytest.raises(UnsupportedVersionError):
        stream.readers.release("etl")


@pytest.mark.parametrize("wrong", [b'"x"', b"[1]", b"-1", b"true", b"1.5"])
def test_record_with_a_wrong_version_is_corrupt(wrong):
    """A version that is not a number is damage, whatever else the record holds."""
    record = encode_record(ReaderRecord("s", 1, 2, "o", 3))
    with pytest.raises(CorruptionError, match="field='version'"):
        decode_record(record.replace(b'"version":0', b'"version":' + wrong), "x")


@pytest.mark.parametrize("name", ["", "_x", "a/b", "..", "x" * 101])
def test_wrong_name_of_a_reader_is_refused(name):
    """A name is a folder."""
    stream, _ = make_stream(1)
    with pytest.raises(InvalidInputError, match="not a name of a reader"):
        stream.readers.register(name)


STALE = {
    "next": lambda stream: stream.follow("etl", timeout=0).__next__,
    "next of a member": lambda stream: stream.follow("etl", member="a", timeout=0).__next__,
    "renew": lambda stream: stream.follow("etl", member="a").renew,
    "close": lambda stream: stream.follow("etl", member="a").reader.leave,
    "publish": lambda stream: partial(stream.readers.register("etl").publish, 5),
    "release": lambda stream: stream.readers.register("etl").release,
    "release by name": lambda stream: partial(stream.readers.release, "etl"),
    "register": lambda stream: partial(stream.readers.register, "etl"),
}


@pytest.mark.parametrize(("again", "seconds"), [(False, 0), (True, 0), (True, 2 * CONFIRM_S)])
@pytest.mark.parametrize("call", STALE)
def test_handle_of_a_dropped_stream_leaves_no_record_in_a_new_one(call, again, seconds):
    """It would stop the new stream's retention, and end its reader of that name."""
    stream, storage = make_stream(3)
    old = open_on(storage, clock=stream._log.clock)
    stale = STALE[call](old)
    if call.startswith("next"):
        stale()
    run_drop(storage, confirm=storage.url, clock=stream._log.clock, client="")
    if again:
        fresh = create_on(storage, SCHEMA, clock=stream._log.clock)
        live = fresh.readers.register("etl")
    wait(storage, seconds)
    before = objects(storage, "readers/etl")
    with pytest.raises(NotFoundError):
        stale()
    assert objects(storage, "readers/etl") == before
    if again:
        live.publish(0)
        assert fresh.verify().ok


def test_record_that_was_put_long_after_the_stream_was_dropped_is_deleted_again():
    stream, storage = make_stream(1)

    def remake():
        run_drop(storage, confirm=storage.url, clock=stream._log.clock, client="")
        create_on(storage, SCHEMA, clock=stream._log.clock).readers.register("etl")
        wait(storage, 60)

    slow = Meddling(storage, f"create readers/etl/{1:020}", remake)
    reader = open_on(slow, clock=stream._log.clock).readers.register("etl")
    with pytest.raises(NotFoundError, match="another one was created"):
        reader.publish(5)
    assert open_on(storage, clock=stream._log.clock).verify().ok


@pytest.mark.parametrize("start", [None, "head"])
@pytest.mark.parametrize("member", [None, "w1"])
def test_new_reader_begins_at_a_head_that_moves_meanwhile(member, start):
    """Who asks for what there is loses nothing, however long it took to register."""
    stream, storage = make_stream(3)
    moving = Meddling(storage, "create readers/billing", lambda: stream.truncate(25))
    own = open_on(moving, clock=stream._log.clock)
    follow = own.follow("billing", member=member, start=start, timeout=0)
    assert next(follow)["n"].to_pylist() == [25, 26, 27, 28, 29]
    assert moving.met


@pytest.mark.parametrize("ask", ["register", "reset"])
def test_known_reader_goes_back_to_a_head_that_moves_meanwhile(ask):
    """Its position held nothing back below itself, so retention may move the head up to it."""
    stream, storage = make_stream(3)
    stream.readers.register("billing", start=20)
    moving = Meddling(
        storage, f"create readers/billing/{1:020}", lambda: stream.retain(max_age="0s")
    )
    own = open_on(moving, clock=stream._log.clock)
    if ask == "register":
        own.readers.register("billing", start="head")
    else:
        own.readers.reset("billing", "head")
    assert (moving.met, held(stream), stream.refresh().head) == (True, {"billing": 20}, 20)


def test_record_that_others_deleted_meanwhile_is_written():
    """A reader that slept right behind its record purges nothing, and has published it."""
    stream, storage = make_stream(1)
    name = f"readers/etl/{15:020}"
    slow = Meddling(storage, f"info {name}", lambda: storage.delete(name))
    reader = open_on(slow, clock=stream._log.clock).readers.register("etl")
    wait(storage, 10)
    for _ in range(15):
        reader.publish(7)
    assert (slow.met, reader.offset) == (True, 7)


def test_two_handles_of_one_owner_leave_the_later_position():
    """A driver that was thought dead does not set its successor back."""
    stream, storage = make_stream(3)
    first = stream.readers.register("etl", owner="a")
    second = open_on(storage, clock=stream._log.clock).readers.register("etl", owner="a")
    second.publish(20)
    first.publish(10)
    assert first.offset == second.offset == 20


def test_late_reader_record_reports_dropped_events():
    """The time counts until the record is there: retention may have found the old one lapsed."""
    stream, storage = make_stream(3)

    def late() -> None:
        wait(storage, 40)
        assert stream.retain(max_bytes=0).head == 30

    meddling = Meddling(storage, "create readers/etl/00000000000000000001", late)
    reader = open_on(meddling, clock=stream._log.clock).readers.register("etl", lapse_s=60)
    wait(storage, 29)
    with pytest.raises(TruncatedError, match=r"lost='\[5, 30\)'"):
        reader.publish(5)


@pytest.mark.parametrize("data", [b"", b"v1\n", b"v2\nplain 1 1 x\n{"])
def test_unreadable_record_is_never_no_reader(data):
    """Missing, empty, truncated and newer records are errors; the list of readers names them."""
    stream, storage = make_stream(1)
    stream.readers.register("etl")
    path = max(objects(storage, "readers/etl"))
    storage.delete(path)
    storage.put(path, data or b"\n")
    for asked in (lambda: held(stream), lambda: stream.readers.register("etl")):
        with pytest.raises(FormatError):
            asked()
    assert [*stream.readers.damaged] == ["etl"]


def test_reader_of_another_stream_is_noticed():
    """A folder copied from elsewhere does not hold back a wrong offset."""
    stream, storage = make_stream(1)
    record = ReaderRecord("another", 0, 3, "", 60, name="x")
    storage.create("readers/x/00000000000000000000", encode_envelope(encode_record(record)))
    with pytest.raises(CorruptionError, match="another stream"):
        held(stream)
    assert [*stream.readers.damaged] == ["x"]


def test_record_carries_fields_of_a_newer_version_through():
    """An older client never drops what it does not know."""
    record = ReaderRecord("s", 1, 2, "o", 3, extra={"later": [1]})
    assert decode_record(encode_record(record), "x") == record
    newer = encode_record(record).replace(b'"format":1', b'"format":3')
    with pytest.raises(UnsupportedVersionError):
        decode_record(newer, "x")
