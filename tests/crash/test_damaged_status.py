"""Status objects damaged in every way, on streams of every kind: it costs no event and no error."""

from collections.abc import Callable
from functools import cache
from itertools import product

import pytest
from crash_kit import discard, events
from damage_kit import MAKERS, WAYS, Made, cloned, listed, redacted, said, tight

from segstore_ds.format import names
from segstore_ds.status.references import read_references
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.rescue import repair as repair_on
from segstore_ds.stream.stream import Stream

Maker = Callable[[], Made]
QUICK = {(cloned, "twins"), (listed, "status"), (listed, "twins"), (redacted, "status")}


@cache
def made_by(maker: Maker) -> tuple[Made, dict[str, object], frozenset[str]]:
    """Return a stream, what it says, and the objects that its newest root lists."""
    with tight():
        made = maker()
    storage = made.open()
    stream = open_on(storage, clock=storage.time.clock)
    stream.verify().check()
    return made, said(stream), listed_by(stream)


def listed_by(stream: Stream) -> frozenset[str]:
    """Return the objects that the newest root of a stream lists."""
    return frozenset(read_references(stream._context.status, stream._log.root).live)


def check(maker: Maker, damage: dict[str, str]) -> None:
    """Check that a stream does all that it did before damage, and that repair undoes the damage."""
    made, expected, listed = made_by(maker)
    storage = made.open(damage)
    clock = storage.time.clock
    stream = open_on(storage, clock=clock)
    assert said(stream) == expected
    told = {problem.where for problem in stream.verify().problems}
    assert damage.keys() & listed <= told <= damage.keys()
    with tight():
        storage.time.advance(3600)
        stream.append(events(50, 51).rename_columns(stream.schema.names[:2]), merge_schema=True)
        stream.compact(target_rows=1000)
        assert repair_on(storage, clock=clock).ok
    stream = open_on(storage, clock=clock)
    assert stream.read().read_all().num_rows == len(expected["events"]) + 1
    stream.verify().check()
    for path in damage.keys() & listed & listed_by(stream):
        assert storage.get(path) in {files.get(path) for files in made.folders.values()}
    discard(storage)


@pytest.mark.parametrize(
    ("maker", "folder"),
    [
        pytest.param(
            *case,
            id="-".join((case[0].__name__, case[1])),
            marks=[] if case in QUICK else [pytest.mark.slow],
        )
        for case in product(MAKERS, ("status", "twins"))
    ],
)
def test_damage_of_one_name_of_each_status_object_costs_nothing(maker: Maker, folder: str) -> None:
    """All at once, in ways that take turns; the ways of the two folders differ."""
    damage = {}
    for place, path in enumerate(made_by(maker)[0].status):
        first = (place % 2 == 0) == (folder == "status")
        way = WAYS[(place + (folder == "twins")) % len(WAYS)]
        damage[path if first else names.twin_of(path)] = way
    check(maker, damage)


@pytest.mark.sweep
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
def test_damage_of_each_status_object_alone_costs_nothing(maker: Maker, way: str) -> None:
    """Each name in turn, in every way."""
    for path in made_by(maker)[0].status:
        for name in names.both_names(path):
            check(maker, {name: way})
