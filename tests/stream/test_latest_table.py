"""`publish(latest_by=)`: tables of the newest event of each key, and rounds that keep them."""

from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from erasure_kit import NEEDLE, holders
from faults import FaultStorage
from latest_kit import KEY, SCHEMA, TOMBSTONE, Timed, beside, expected, rows, shown
from publish_kit import DELTA, TABLES, Table
from pyiceberg.table import StaticTable
from stream_kit import DAY, HOUR, fresh_url, objects, wait
from virtual_time import VirtualTime

import segstore_ds as segstore
from segstore_ds.copy.backup import run_backup
from segstore_ds.errors import InvalidInputError
from segstore_ds.observe.series import stream_samples
from segstore_ds.publish.latest import OFFSET
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.stream import Stream

FIRST = [("ada", 1, None), ("bob", 2, None), ("ada", 3, False), (None, 4, None)]


@pytest.fixture
def made() -> tuple[Stream, Timed]:
    """Return a stream of four events of three keys, on a virtual clock."""
    time = VirtualTime(1)
    storage = Timed(open_storage(fresh_url()), time)
    stream = create_on(storage, SCHEMA, upkeep=None, clock=time.clock)
    stream.append(rows(*FIRST))
    return stream, storage


def publish(stream: Stream, table: Table = DELTA, **how: object) -> segstore.reports.Published:
    """Publish the newest events."""
    return stream.publish(table.kind, latest_by=KEY, tombstone=TOMBSTONE, **how)


def numbers(stream: Stream, table: Table = DELTA) -> list[object]:
    """Return the numbers that a table shows."""
    return [row["n"] for row in shown(stream, table)]


def test_other_engines_read_the_newest_events(tmp_path: Path) -> None:
    """By delta-rs and by pyiceberg, at the location that the answer names."""
    stream = segstore.create(tmp_path / "clicks", SCHEMA)
    stream.append(rows(*FIRST))
    for n in range(3):
        stream.append(rows(("bob", n, n == 1)))
        done = [publish(stream, table) for table in TABLES]
        assert {table.url for table in done} == {f"{stream.url}_latest"}
        found = deltalake.DeltaTable(tmp_path / "clicks_latest").to_pyarrow_table()
        assert found.to_pylist() == expected(stream)
        table = StaticTable.from_metadata(str(tmp_path / "clicks_latest")).scan().to_arrow()
        assert table.to_pylist() == expected(stream)
    assert [row["n"] for row in expected(stream)] == [3, 4, 2]
    assert segstore.list_streams(tmp_path) == [stream.url, f"{stream.url}_latest"]


def test_round_reads_what_is_new_and_writes_what_it_holds(made: tuple[Stream, Timed]) -> None:
    """Of the stream it reads no older segment; without anything new it writes nothing."""
    stream, storage = made
    layout = segstore.Layout(inline_bytes=0)
    stream.append(rows(("eve", 5, None)), layout=layout)
    publish(stream)
    stream.append(rows(("eve", 6, None)), layout=layout)
    traced = FaultStorage(storage)
    publish(open_on(traced, clock=stream._log.clock))
    read = {call.split()[1] for call in traced.calls if "segments/" in call}
    assert len(read) == 1
    held = beside(stream)
    assert (len(held), held.info()["segments"]) == (4, 1)
    publish(stream.refresh())
    assert beside(stream).version == held.version


def test_what_the_stream_has_no_more_leaves_the_table(made: tuple[Stream, Timed]) -> None:
    """A key whose last event lies below the head is gone, as after a scan."""
    stream, _ = made
    publish(stream)
    stream.truncate(2)
    publish(stream)
    assert numbers(stream) == [3, 4]
    stream.overwrite(rows(("eve", 9, None)))
    publish(stream)
    assert numbers(stream) == [9]
    stream.append(rows(("eve", 9, True)))
    publish(stream)
    assert numbers(stream) == []
    stream.append(rows(("ada", 7, None)))
    publish(stream)
    assert shown(stream, DELTA) == expected(stream)


def test_schema_of_the_stream_is_that_of_the_table(made: tuple[Stream, Timed]) -> None:
    """New columns and wider types come along; a name of our own is refused."""
    stream, _ = made
    publish(stream)
    wider = rows(("eve", 5, None)).append_column("x", pa.array([1.5]))
    stream.append(wider, merge_schema=True)
    publish(stream)
    assert shown(stream, DELTA) == expected(stream)
    assert beside(stream).schema.names == [*stream.schema.names, OFFSET]
    stream.append(wider.rename_columns([*SCHEMA.names, OFFSET]), merge_schema=True)
    with pytest.raises(InvalidInputError, match="adds a column"):
        publish(stream)


def test_key_that_the_stream_has_no_more_is_named(made: tuple[Stream, Timed]) -> None:
    """Another schema may lack it; nothing is published until another key is chosen."""
    stream, _ = made
    publish(stream, auto=True)
    stream.overwrite(pa.table({"n": [7]}), overwrite_schema=True)
    with pytest.raises(InvalidInputError, match="no such column"):
        stream.maintain()
    done = stream.redact("n == 7", columns=["n"], forget=True)
    assert [left.call for left in done.forgotten.left if "newest" in left.what] == [
        "published.remove_latest()"
    ]
    stream.published.remove_latest()
    stream.publish("delta", latest_by=["n"])
    assert numbers(stream) == [None]


def test_key_and_tombstone_follow_their_columns(made: tuple[Stream, Timed]) -> None:
    """They are stored by the columns' stored names, which another column may have as its name."""
    stream, _ = made
    stream.change_schema(rename={"user": "person", "n": "user"})
    how = {"latest_by": ["person"], "tombstone": TOMBSTONE}
    assert stream.publish("delta", **how).latest_by == ("person",)
    stream.change_schema(rename={"person": "n", "user": "gone", "gone": "user"})
    stream.append(pa.table({"n": ["ada"], "gone": [1], "user": [True]}))
    assert stream.publish("delta", latest_by=["n"], tombstone="user").latest_by == ("n",)
    assert beside(stream).read().read_all()["n"].to_pylist() == ["bob", None]


def test_streams_of_a_folder_are_read_without_it(tmp_path: Path) -> None:
    """A set of streams would have each of its events twice, and the next round ends a loop."""
    stream = segstore.create(tmp_path / "clicks", SCHEMA)
    stream.append(rows(*FIRST))
    publish(stream)
    streams = segstore.StreamSet(f"{tmp_path}/*")
    loop = streams.follow(start="head", timeout=0, max_rows=3)
    assert len(next(loop)) == 3
    publish(stream.append(rows(("eve", 5, None))) and stream)
    assert sum(map(len, loop)) == 2
    assert pa.table(streams.scan())["stream"].to_pylist() == ["clicks"] * 5
    stream.published.remove_latest()
    assert [*loop] == []


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"latest_by": ["usr"]}, "no such column"),
        ({"latest_by": []}, "no key"),
        ({"latest_by": ["list"]}, "plain values"),
        ({"latest_by": KEY, "tombstone": "user"}, "booleans"),
        ({"latest_by": KEY}, "another key"),
        ({"tombstone": "gone"}, "needs a key"),
    ],
)
def test_what_can_not_be_a_table_is_named(
    made: tuple[Stream, Timed], how: dict[str, object], said: str
) -> None:
    """Before anything is made; so is a second key."""
    stream, _ = made
    listed = pa.table({"list": pa.array([[1]])})
    stream.append(listed, merge_schema=True)
    stream.publish("delta", latest_by=["n"])
    with pytest.raises(InvalidInputError, match=said):
        stream.publish("delta", **how)


def test_what_a_stranger_did_to_it_is_made_good(made: tuple[Stream, Timed]) -> None:
    """What the round's own commit did not make is not built upon."""
    stream, _ = made
    publish(stream)
    beside(stream).truncate("tail")
    stream.append(rows(("eve", 5, None)))
    publish(stream)
    assert shown(stream, DELTA) == expected(stream)
    assert len(expected(stream)) == 4
    beside(stream).overwrite(rows(("eve", 6, None)), merge_schema=True)
    assert publish(stream).lag == 0
    assert shown(stream, DELTA) == expected(stream)


def test_stream_in_its_place_is_left_alone(made: tuple[Stream, Timed]) -> None:
    """It may be anybody's."""
    stream, storage = made
    other = create_on(storage.sibling(f"{storage.url}_latest"), SCHEMA, clock=stream._log.clock)
    with pytest.raises(InvalidInputError, match="another stream"):
        publish(stream)
    assert other.refresh().version == 0
    assert stream.published.latest == {}
    with pytest.raises(InvalidInputError, match="root of a bucket"):
        publish(open_on(_Whole(storage), clock=stream._log.clock))


class _Whole(Timed):
    """A storage that is a whole bucket."""

    def __init__(self, inner: Timed) -> None:
        super().__init__(inner, inner.time, like=inner)

    def outer(self) -> None:
        return None


def test_commits_keep_it_up_to_date_once_a_minute(made: tuple[Stream, Timed]) -> None:
    """Whoever makes them; `maintain` does so at once; without `auto` nobody does."""
    stream, storage = made
    publish(stream)
    publish(stream, auto=True)
    wait(storage, 10)
    stream.append(rows(("bob", 5, None)))
    assert numbers(stream) == [3, 4, 2] or numbers(stream) == [2, 3, 4]
    assert stream.published.latest["delta"].lag == 1
    wait(storage, 61)
    open_on(storage, clock=stream._log.clock).append(rows(("bob", 6, True)))
    assert numbers(stream.refresh()) == [3, 4]
    assert stream.published.latest["delta"].lag == 0
    stream.append(rows(("bob", 7, None)))
    stream.maintain()
    assert numbers(stream) == [3, 4, 7]
    publish(stream, auto=False)
    wait(storage, HOUR)
    stream.append(rows(("bob", 8, None)))
    assert numbers(stream) == [3, 4, 7]


def test_a_table_is_removed_with_what_it_holds(made: tuple[Stream, Timed]) -> None:
    """Commits make it no more, and another key can be chosen."""
    stream, storage = made
    publish(stream, auto=True)
    assert stream.published.remove_latest() >= 2
    wait(storage, HOUR)
    stream.append(rows(("bob", 5, None)))
    assert stream.published.latest == {}
    stream.published.remove_latest()
    stream.publish("delta", latest_by=["n"])
    assert numbers(stream) == [1, 2, 3, 4, 5]


def test_upkeep_deletes_what_rounds_replaced(made: tuple[Stream, Timed]) -> None:
    """A day after; readers of an older state need it as long."""
    stream, storage = made
    publish(stream, auto=True)
    for n in range(24):
        wait(storage, 4 * HOUR)
        stream.append(rows(("bob", n, None)))
    held = [*beside(stream)._log.storage.list("segments")]
    assert 6 <= len(held) < 12


def test_forgotten_values_leave_newest_events(made: tuple[Stream, Timed]) -> None:
    """At once for readers of the newest state, every byte after the grace."""
    stream, storage = made
    publish(stream, auto=True)
    for n in range(3):
        wait(storage, 60)
        stream.append(rows((NEEDLE, n, None)))
        publish(stream)
    url = f"{stream.url}_latest"
    assert len(holders(url)) == 3

    def forget() -> segstore.reports.Forgotten:
        how = {"columns": ["user"], "redact_id": "r", "forget": True}
        return stream.refresh().redact([["user", "==", NEEDLE]], **how).forgotten

    first = forget()
    assert [left for left in first.left if url in left.what]
    assert shown(stream, DELTA) == expected(stream)
    for _ in range(3):
        wait(storage, 2 * HOUR)
        stream.append(rows(("bob", 5, None)))
        assert not forget().done
    wait(storage, 8 * DAY)
    assert forget().done
    assert holders(url) == []
    assert holders(stream.url) == []


def put_back(storage: Timed, backup: Timed) -> Stream:
    """Lose a folder, but not the newest events beside it, and put it back from a backup."""
    for path in objects(storage):
        storage.delete(path)
    run_backup(open_on(backup, clock=storage.time.clock)._context, storage)
    return open_on(storage, clock=storage.time.clock)


@pytest.mark.parametrize("appends", [0, 1, 2, 9])
def test_table_of_a_stream_that_was_put_back_shows_what_that_has(
    made: tuple[Stream, Timed], appends: int
) -> None:
    """However many versions it has since: fewer than the lost one, as many, or more."""
    stream, storage = made
    backup = Timed(open_storage(fresh_url()), storage.time)
    run_backup(stream._context, backup)
    for n in range(2):
        stream.append(rows(("eve", n, None), ("ada", n, None)))
        publish(stream)
    back = put_back(storage, backup)
    for n in range(appends):
        back.append(rows(("bob", n, None)))
    done = publish(back)
    assert (done.lag, done.tail) == (0, back.tail)
    assert shown(back, DELTA) == expected(back)
    back.append(rows(("eve", 7, None)))
    publish(back)
    assert shown(back, DELTA) == expected(back)


@pytest.mark.parametrize("knows", [True, False])
def test_values_of_the_time_before_are_forgotten_in_a_stream_that_was_put_back(
    made: tuple[Stream, Timed], knows: bool
) -> None:
    """Also where the stream does not know of the table, which was published after the backup."""
    stream, storage = made
    stream.append(rows((NEEDLE, 1, None)))
    backup = Timed(open_storage(fresh_url()), storage.time)
    for n in range(4):
        if n == knows:
            run_backup(stream._context, backup)
        stream.append(rows(("bob", n, None)))
        publish(stream)
    url = f"{stream.url}_latest"
    assert holders(url)
    wait(storage, 60)
    back = put_back(storage, backup)

    def forget() -> segstore.reports.Forgotten:
        how = {"columns": ["user"], "redact_id": "r", "forget": True}
        return back.redact([["user", "==", NEEDLE]], **how).forgotten

    for _ in range(3):
        left = forget().left
        if not knows:
            assert [each.call for each in left if "newest" in each.what] == [
                "published.remove_latest()"
            ]
            back.published.remove_latest()
            break
        assert [each for each in left if url in each.what]
        publish(back)
        assert shown(back, DELTA) == expected(back)
        wait(storage, 2 * HOUR)
        back.append(rows(("bob", 5, None)))
    wait(storage, 8 * DAY)
    assert forget().done
    assert holders(url) == []


def test_figures_name_it(made: tuple[Stream, Timed]) -> None:
    """Metrics, by a label of its own, and what one looks at."""
    stream, _ = made
    stream.publish("delta")
    publish(stream)
    stream.append(rows(("bob", 5, None)))
    figures = stream.metrics()
    assert [(table.format, table.latest_by) for table in figures.published] == [
        ("delta", ()),
        ("delta", ("user",)),
    ]
    lag = [s for s in stream_samples(figures) if s.series.name == "segstore.published_lag_events"]
    assert [(s.labels[1], s.value) for s in lag] == [("delta", 5), ("delta latest", 1)]
    assert ("Delta table of newest events", 1) in [each[:2] for each in figures.copies()]


@pytest.mark.background_upkeep
def test_clones_and_followers_have_none(tmp_path: Path) -> None:
    """A clone is materialized first; a follower that is promoted makes its own."""
    stream = segstore.create(tmp_path / "s", SCHEMA, upkeep=None)
    stream.append(rows(*FIRST), layout=segstore.Layout(inline_bytes=0))
    publish(stream, auto=True)
    stream.copy_to(tmp_path / "clone", copy_id="c", mode="clone")
    clone = segstore.open(tmp_path / "clone")
    with pytest.raises(InvalidInputError, match="materialize"):
        publish(clone)
    clone.materialize()
    assert publish(clone).url == f"{clone.url}_latest"
    stream.followers.add(tmp_path / "follower")
    stream.append(rows(("bob", 5, None)))
    promoted = segstore.open(tmp_path / "follower")
    promoted.followers.promote()
    promoted = segstore.open(tmp_path / "follower")
    promoted.append(rows(("bob", 6, None)))
    promoted.maintain()
    assert numbers(promoted) == [3, 4, 6]
