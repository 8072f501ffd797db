"""Tags: names for cuts that every reader of a cut understands."""

import pytest
from stream_kit import Meddling, make_stream, numbers, values

from segstore_ds.errors import (
    AlreadyExistsError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    PositionError,
    TruncatedError,
)
from segstore_ds.format.record import from_json
from segstore_ds.format.root import Tag
from segstore_ds.retention import tags
from segstore_ds.stream.opening import open as open_on


def test_tag_is_accepted_wherever_a_cut_is():
    """Start, end, position, truncate and another tag."""
    stream, storage = make_stream(3)
    assert stream.tags.set("eod", 20).offset == 20
    seen = open_on(storage, clock=stream._log.clock)
    assert values(seen, "tag:eod") == list(range(20, 30))
    assert values(seen, "head", "tag:eod") == list(range(20))
    assert seen.position("tag:eod").offset == 20
    assert seen.tags.set("same", "tag:eod").offset == 20
    assert seen.truncate("tag:eod") == 20
    assert {name: tag.offset for name, tag in seen.tags.items()} == {"eod": 20, "same": 20}


def test_tag_moves_only_when_asked():
    """The same cut again changes nothing, another one is an error unless it may move."""
    stream, _ = make_stream(3)
    stream.tags.set("eod", 20)
    version = stream.version
    assert stream.tags.set("eod", 20).version == stream.version == version
    with pytest.raises(AlreadyExistsError, match="move=True"):
        stream.tags.set("eod", 25)
    assert stream.tags.set("eod", 25, move=True).offset == 25


def test_untag_removes_and_an_unknown_tag_is_named():
    """An unknown name is an error."""
    stream, _ = make_stream(1)
    stream.tags.set("a", 3)
    stream.tags.delete("a")
    assert stream.tags == {}
    for wrong in (lambda: stream.tags.delete("a"), lambda: stream.read("tag:a")):
        with pytest.raises(NotFoundError, match="no such tag"):
            wrong()


def test_tag_below_the_head_names_the_lost_events():
    """A truncation does not ask tags; reading from one that fell below the head is an error."""
    stream, _ = make_stream(3)
    stream.tags.set("old", 5)
    stream.truncate(10)
    with pytest.raises(TruncatedError, match=r"lost='\[5, 10\)'"):
        stream.read("tag:old")
    assert values(stream, "tag:old", fail_on_data_loss=False) == list(range(10, 30))
    with pytest.raises(TruncatedError, match=r"lost='\[9, 10\)'.*tag 'head' or a later cut"):
        stream.tags.set("new", 9)
    with pytest.raises(PositionError):
        stream.tags.set("new", 31)


@pytest.mark.parametrize("name", ["", "_x", ".x", "a/b", "a b", "ü", "x" * 101, "../x"])
def test_wrong_name_is_refused(name):
    """A name is plain, so that it may stand in a folder and in an option."""
    stream, _ = make_stream(1)
    for wrong in (lambda: stream.tags.set(name), lambda: stream.read(f"tag:{name}")):
        with pytest.raises(InvalidInputError, match="not a name of a tag"):
            wrong()


def test_tags_are_bounded(monkeypatch):
    """A root holds so many tags and says how to go on."""
    monkeypatch.setattr(tags, "TAGS_BYTES", 2 * 31)
    stream, _ = make_stream(1)
    stream.tags.set("a")
    stream.tags.set("b")
    with pytest.raises(InvalidInputError, match=r"tags\.delete"):
        stream.tags.set("c")
    stream.append(numbers(10, 11))
    stream.tags.set("a", move=True)


@pytest.mark.parametrize("moves", [False, True])
def test_tag_on_concurrently_dropped_events_is_refused(moves):
    """If retention came first, the tag is refused."""
    stream, storage = make_stream(3)
    if moves:
        stream.tags.set("eod", 5)
    other = open_on(storage, clock=stream._log.clock)
    drops = Meddling(storage, "create log/", lambda: other.truncate(20))
    with pytest.raises(TruncatedError, match="head=20"):
        open_on(drops, clock=stream._log.clock).tags.set("eod", 10, move=moves)
    assert {name: tag.offset for name, tag in other.refresh().tags.items()} == (
        {"eod": 5} if moves else {}
    )


def test_repeated_tag_succeeds_after_its_events_are_dropped():
    """To ask for it again changes nothing."""
    stream, storage = make_stream(3)
    other = open_on(storage, clock=stream._log.clock)

    def both() -> None:
        other.tags.set("eod", 10)
        other.truncate(20)

    late = open_on(Meddling(storage, "create log/", both), clock=stream._log.clock)
    assert late.tags.set("eod", 10).offset == 10


@pytest.mark.parametrize("value", [None, 5, [], [1, 2], [1, 2, "3"], [-1, 2, 3], {"offset": 1}])
def test_damaged_tag_is_corruption(value):
    """What is no tag is never taken for one, nor passed over."""
    with pytest.raises(CorruptionError):
        from_json(Tag, value, where="root")


def test_retention_waits_for_tags():
    """A tag holds back `retain`."""
    stream, _ = make_stream(4)
    stream.tags.set("held", 10)
    stream.tags.set("later", 25)
    stream.retain(max_bytes=0)
    assert stream.head == 10
    stream.tags.delete("held")
    stream.retain(max_bytes=0)
    assert stream.head == 25
