"""Tags: names for cuts that every reader of a cut understands."""

import string
from dataclasses import replace
from random import Random

import pytest
from stream_kit import make_stream, numbers, values

from segstore_ds.engine import tags
from segstore_ds.errors import (
    AlreadyExistsError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    PositionError,
    TruncatedError,
)
from segstore_ds.format.envelope import encode_envelope
from segstore_ds.format.root import ROOT_LIMIT_BYTES
from segstore_ds.format.root_codec import encode_root
from segstore_ds.format.tag import parse_tags
from segstore_ds.stream import open_on


def test_tag_is_accepted_wherever_a_cut_is():
    """Start, end, position, truncate and another tag."""
    stream, storage = make_stream(3)
    assert stream.tag("eod", 20).offset == 20
    seen = open_on(storage, clock=stream._log.clock)
    assert values(seen, "tag:eod") == list(range(20, 30))
    assert values(seen, "head", "tag:eod") == list(range(20))
    assert seen.position("tag:eod").offset == 20
    assert seen.tag("same", "tag:eod").offset == 20
    assert seen.truncate("tag:eod") == 20
    assert {name: tag.offset for name, tag in seen.tags.items()} == {"eod": 20, "same": 20}


def test_tag_moves_only_when_asked():
    """The same cut again changes nothing, another one is an error unless it may move."""
    stream, _ = make_stream(3)
    stream.tag("eod", 20)
    version = stream.version
    assert stream.tag("eod", 20).version == stream.version == version
    with pytest.raises(AlreadyExistsError, match="move=True"):
        stream.tag("eod", 25)
    assert stream.tag("eod", 25, move=True).offset == 25


def test_untag_removes_and_an_unknown_tag_is_named():
    """Nothing stands for a name that is not there."""
    stream, _ = make_stream(1)
    stream.tag("a", 3)
    stream.untag("a")
    assert stream.tags == {}
    for wrong in (lambda: stream.untag("a"), lambda: stream.read("tag:a")):
        with pytest.raises(NotFoundError, match="no such tag"):
            wrong()


def test_tag_below_the_head_says_what_is_lost():
    """A truncation does not ask tags; reading from one that fell below the head is an error."""
    stream, _ = make_stream(3)
    stream.tag("old", 5)
    stream.truncate(10)
    with pytest.raises(TruncatedError, match=r"lost='\[5, 10\)'"):
        stream.read("tag:old")
    assert values(stream, "tag:old", fail_on_data_loss=False) == list(range(10, 30))
    with pytest.raises(TruncatedError):
        stream.tag("new", 9)
    with pytest.raises(PositionError):
        stream.tag("new", 31)


@pytest.mark.parametrize("name", ["", "_x", ".x", "a/b", "a b", "ü", "x" * 101, "../x"])
def test_wrong_name_is_refused(name):
    """A name is plain, so that it may stand in a folder and in an option."""
    stream, _ = make_stream(1)
    for wrong in (lambda: stream.tag(name), lambda: stream.read(f"tag:{name}")):
        with pytest.raises(InvalidInputError, match="not a name of a tag"):
            wrong()


def test_tags_are_bounded(monkeypatch):
    """A root holds so many tags and says how to go on."""
    monkeypatch.setattr(tags, "TAGS_LIMIT", 2)
    stream, _ = make_stream(1)
    stream.tag("a")
    stream.tag("b")
    with pytest.raises(InvalidInputError, match="untag"):
        stream.tag("c")
    stream.append(numbers(10, 11))
    stream.tag("a", move=True)


def test_as_many_tags_as_there_may_be_leave_room_in_the_root():
    """Tags never spill: their number is bounded, so the root is, with the longest names too."""
    stream, _ = make_stream(200)
    rng, signs = Random(1), string.ascii_letters + string.digits + "._-"
    names = ["a" + "".join(rng.choices(signs, k=99)) for _ in range(tags.TAGS_LIMIT)]
    stream.tag(names[0], 5)
    _, version, time_us = stream.root.tags[names[0]]
    many = {name: [rng.randrange(1 << 40), version, time_us + n] for n, name in enumerate(names)}
    root = replace(stream.root, tags=many)
    assert 20_000 < len(encode_envelope(encode_root(root))) < ROOT_LIMIT_BYTES - 16_000


@pytest.mark.parametrize("value", [None, 5, [], [1, 2], [1, 2, "3"], [-1, 2, 3], {"offset": 1}])
def test_damaged_tag_is_corruption(value):
    """What is no tag is never taken for one, nor passed over."""
    with pytest.raises(CorruptionError):
        parse_tags({"x": value}, where="root")
