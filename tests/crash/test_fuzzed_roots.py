"""Every field of a root, with a value of every JSON type: all that is done ends in a typed error.

Or it works, where the value is one that the field may have. What is deep within a field counts too,
and so does what the texts of properties say.
"""

import json
import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from crash_kit import files_of
from stream_kit import SCHEMA, TIGHT, numbers
from virtual_time import TimedStorage, VirtualTime

from segstore_ds.errors import InternalError, SegstoreError
from segstore_ds.format.envelope import decode_envelope, encode_envelope, split_envelope
from segstore_ds.format.policies import RetentionPolicy, UpkeepPolicy
from segstore_ds.log.clock import BRIEF_CLOCK
from segstore_ds.retention.deletion import run_maintain
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.rescue import repair as repair_on
from segstore_ds.stream.rescue import verify as verify_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

pytestmark = pytest.mark.slow

Place = tuple[Any, ...]
Made = tuple[str, dict[str, bytes]]

VALUES: list[Any] = [None, True, -1, 1.5, 2**63 - 1, "\ud800", ["x"], {"x": 1}]
MORE: list[Any] = [*VALUES, 0, 7, 10**40, "", "x", [], {}]  # of the field itself
INSIDE = "a JSON text"  # a step of a place: into what a text says
STAGED = Layout(inline_bytes=0, segment_format="parquet")
CLONES = {"origins"}  # fields that only the root of a clone has
EMPTY = {"lists", "history_lists", "reader_features", "writer_features"}
EMPTY |= {"writers_parts", "writers_lists", "retired_lists"}


def each(*reads: Callable[[Stream], object]) -> Callable[[Stream], None]:
    """Return what does several things, each of which may fail."""

    def run(stream: Stream) -> None:
        for read in reads:
            with suppress(SegstoreError):
                read(stream)

    return run


STEPS: dict[str, Callable[[Stream], object]] = {
    "read": each(
        lambda stream: stream.read().read_all(),
        lambda stream: stream.read(event_time=(2, 5)).read_all(),
        lambda stream: stream.read("-1h", "tag:t", filters=[["s", "=", "s1"]]).read_all(),
    ),
    "info": lambda stream: stream.info(),
    "segments": lambda stream: stream.segments().read_all().to_pylist(),
    "history": lambda stream: stream.history().read_all().to_pylist(),
    "properties": each(
        lambda stream: stream.settings.retention,
        lambda stream: stream.settings.key_columns,
        lambda stream: stream.settings.time_column,
        lambda stream: stream.settings.upkeep,
        lambda stream: stream.settings.publish,
        lambda stream: stream.followers,
        lambda stream: stream.pins,
        lambda stream: stream.tags,
    ),
    "metrics": lambda stream: stream.metrics(storage=True),
    "publish status": lambda stream: stream.published.get("delta"),
    "append": lambda stream: stream.append(
        numbers(0, 1), writer_id="w", batch_id=99, merge_schema=True
    ),
}


def make_rich(url: str) -> None:
    """Make a stream whose newest root has something in nearly every field, and a clone of it."""
    source = create_on(open_storage(f"{url}/source"), SCHEMA)
    source.append(numbers(0, 4), layout=STAGED)
    source.copy_to(f"{url}/rich", copy_id="copied")
    stream = open_on(open_storage(f"{url}/rich"), clock=BRIEF_CLOCK)
    stream.settings.update(key_columns=["s"])
    stream.settings.update(time_column="n")
    for n in range(5):
        stream.append(numbers(n, n + 3), writer_id="w", batch_id=n, layout=STAGED)
    stream.tags.set("t", 2)
    stream.truncate(1)
    stream.redact([["n", "=", 3]], columns=["s"], redact_id="r")
    stream.copy_to(f"{url}/clone", copy_id="cloned", mode="clone")
    wider = numbers(0, 1).append_column("more", pa.array([1.5]))
    stream.append(wider, merge_schema=True)
    stream.settings.update(retention=RetentionPolicy(max_age="7d"))
    stream.settings.update(upkeep=UpkeepPolicy(grace_s=86_400))
    stream.followers.add(f"{url}/follower")
    stream.publish("delta", auto=True)
    still = VirtualTime(now_us=BRIEF_CLOCK.wall_us())
    stream = open_on(TimedStorage(open_storage(f"{url}/rich"), still), clock=still.clock)
    stream._context.log.grace_s = 0.0  # verify and repair read every version that is kept
    run_maintain(stream._context, keep_s=0)
    stream.append(numbers(0, 2), writer_id="w", batch_id=9, merge_schema=True)
    assert stream._log.root.log_start > 12


@pytest.fixture(scope="module")
def made() -> Iterator[dict[str, Made]]:
    """The files of the stream, and of its clone, by location."""
    url = f"memory://{uuid.uuid4().hex}"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (*TIGHT.items(), ("segstore_ds.status.table.HISTORY.rows", 4)):
            patch.setattr(name, value)
        make_rich(url)
        places = {"rich": f"{url}/rich", "clone": f"{url}/clone"}
        yield {name: (place, files_of(open_storage(place))) for name, place in places.items()}


def newest_of(files: dict[str, bytes]) -> str:
    """Return the name of the newest commit file."""
    return max(path for path in files if path.startswith("log/") and path[-20:].isdigit())


def read_root(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return a commit file's JSON, and the frames behind it."""
    front, frames = split_envelope(data)
    root: dict[str, Any] = json.loads(decode_envelope(front, where=""))
    return root, frames


def places_of(value: Any) -> Iterator[Place]:
    """Yield every place of a value; of a list the first item and the last."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = [*value.items()]
    elif isinstance(value, list):
        items = [*{0: value[0], len(value) - 1: value[-1]}.items()] if value else []
    elif isinstance(value, str) and value[:1] in ("{", "[", '"'):
        with suppress(ValueError):
            items = [(INSIDE, json.loads(value))]
    yield ()
    for step, inner in items:
        yield from ((step, *rest) for rest in places_of(inner))


def changed(value: Any, place: Place, new: Any) -> Any:
    """Return a value with something else in a place."""
    if not place:
        return new
    step, *rest = place
    if step == INSIDE:
        return json.dumps(changed(json.loads(value), tuple(rest), new))
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[step] = changed(copy[step], tuple(rest), new)
    return copy


def put_back(storage: Storage, files: dict[str, bytes]) -> None:
    """Make the objects of a storage those of before."""
    there = files_of(storage)
    for path in there.keys() - files.keys():
        storage.delete(path)
    for path, data in files.items():
        if there.get(path) != data:
            storage.put(path, data)


def run(step: Callable[[], object], told: str) -> bool:
    """Do something; tell whether it worked. Any other error than a typed one fails the test."""
    try:
        step()
    except InternalError as error:
        pytest.fail(f"{told}: {error}")
    except SegstoreError:
        return False
    except Exception as error:  # noqa: BLE001 - what this test is about
        pytest.fail(f"{told}: {error!r}")
    return True


FIELDS = [
    "client", "copies", "dropped", "entries", "epochs", "format", "generation", "head",
    "history", "history_lists", "history_parts", "lists", "log_start", "next_segment",
    "operation", "origins", "parent", "parts", "pins", "properties",
    "reader_features", "redactions", "restored", "retired", "retired_lists",
    "retired_parts", "sealed",
    "staging_floor", "stream_id", "tags", "tail", "time_us", "transaction", "upkeep",
    "version", "writer_features", "writers", "writers_lists", "writers_parts",
]  # fmt: skip


def test_streams_have_all_fields(made: dict[str, Made]) -> None:
    """What is tried is what roots have; some fields are empty, and only tried as a whole."""
    roots = {kind: read_root(files[newest_of(files)])[0] for kind, (_, files) in made.items()}
    empty = {name for name, value in roots["rich"].items() if value in ([], {}, None, "")}
    assert empty <= EMPTY | CLONES
    assert roots["clone"]["origins"]
    assert {*roots["rich"]} == {*FIELDS}


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("field", FIELDS)
def test_value_of_any_type_ends_in_a_typed_error(
    made: dict[str, Made], field: str, whole: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Or works; what a commit does in the background counts too.

    All values of the field itself; in the sweep also all of each place within it, else a third of
    them, the next ones at the next place.
    """
    url, files = made["clone" if field in CLONES else "rich"]
    storage, path = open_storage(url), newest_of(files)
    root, frames = read_root(files[path])
    with caplog.at_level(logging.ERROR):
        for turn, place in enumerate(places_of(root[field])):
            looked = False
            for value in (VALUES if whole else VALUES[turn % 3 :: 3]) if place else MORE:
                told = f"{(field, *place)} = {value!r}"
                body = json.dumps(changed(root, (field, *place), value)).encode()
                storage.put(path, encode_envelope(body) + frames)
                opens = run(lambda: open_on(storage), f"open, {told}")
                if not opens and looked:
                    continue  # verify and repair see the same error as the open
                looked = looked or not opens
                run(lambda: verify_on(storage), f"verify, {told}")
                for name, step in STEPS.items() if opens else ():
                    run(
                        lambda step=step: step(open_on(storage, clock=BRIEF_CLOCK)),
                        f"{name}, {told}",
                    )
                if not (opens and place):  # it takes longer than all the others together
                    run(lambda: repair_on(storage), f"repair, {told}")
                put_back(storage, files)
    put_back(storage, files)
    assert not caplog.records
