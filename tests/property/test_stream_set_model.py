"""Positions in a folder of streams against a model: each event once, whatever joins and leaves.

The model knows the events of each stream by its id, and what was delivered of them.
"""

import json
from collections import defaultdict
from itertools import count

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from virtual_time import VirtualTime

import segstore_ds as segstore
from segstore_ds.read.progress import FolderBatches, Progress
from segstore_ds.read.together import StreamFolder, Together
from segstore_ds.stream.stream_set import _batches

SCHEMA = pa.schema([("n", pa.int64())])
NAMES = st.sampled_from(["a", "b", "c", "d"])
STEPS = st.one_of(
    st.tuples(st.just("append"), NAMES, st.integers(1, 9)),
    st.tuples(st.just("append"), NAMES, st.integers(1, 9)),
    st.tuples(st.just("replace"), NAMES, st.none()),
    st.tuples(st.just("drop"), NAMES, st.none()),
    st.tuples(st.just("wait"), st.none(), st.integers(0, 40)),
    st.tuples(st.just("batch"), st.none(), st.one_of(st.none(), st.integers(1, 12))),
    st.tuples(st.just("batch"), st.none(), st.one_of(st.none(), st.integers(1, 12))),
    st.tuples(st.just("restart"), st.none(), st.none()),
)
FOLDERS = count()


class Model:
    """Streams in a folder, and a reader of them that remembers nothing but its position."""

    def __init__(self, start: str) -> None:
        self.url = f"memory://sets/{next(FOLDERS)}"
        self.time, self.numbers = VirtualTime(), count()
        self.events: dict[str, list[int]] = {}
        self.streams: dict[str, segstore.Stream] = {}
        self.delivered: dict[str, list[int]] = defaultdict(list)
        self.start, self.begun = start, False
        self.position: str | None = None
        self.origins: dict[str, int] = {}
        self.append("a", 3)
        self.restart()

    def restart(self) -> None:
        folder = StreamFolder.open(
            f"{self.url}/*", None, single_writer=False, clock=self.time.clock
        )
        self.batches = FolderBatches(folder, self.start, fail_on_data_loss=False)
        folder.look(whole=True)

    def append(self, name: str, rows: int) -> None:
        if name not in self.streams:
            self.streams[name] = segstore.create(f"{self.url}/{name}", SCHEMA)
            self.events[self.streams[name].position().stream_id] = []
        numbers = [next(self.numbers) for _ in range(rows)]
        self.streams[name].append(pa.table({"n": numbers}, SCHEMA))
        self.events[self.streams[name].position().stream_id] += numbers

    def drop(self, name: str) -> None:
        if name in self.streams:
            stream = self.streams.pop(name)
            segstore.drop(stream.url, confirm=stream.url)

    def batch(self, rows: int | None) -> bool:
        """Read a batch by positions alone; return whether there was anything."""
        self.batches._most_rows = rows
        self.batches.folder.look()
        before = None if self.position is None else Progress.parse(json.loads(self.position))
        end = self.batches.next(before)
        assert Progress.parse(json.loads(end.to_json())).to_json() == end.to_json()
        if before is None:
            for each in end.streams.values():
                known = self.events[each.position.stream_id]
                assert each.origin == (0 if self.start == "head" else len(known))
        for each in end.streams.values():
            first = self.origins.setdefault(each.position.stream_id, each.origin)
            assert first == each.origin
        streams, spans = self.batches.events(before, end)
        found = 0
        for name, plan in zip(spans, Together(streams).plan(spans=spans), strict=True):
            assert spans[name][0] < spans[name][1]
            events = pa.Table.from_batches(_batches([plan]), plan[2].result_schema)
            assert {*events["stream"].to_pylist()} == {name}
            self.delivered[plan[1].stream_id] += events["n"].to_pylist()
            found += events.num_rows
        assert rows is None or found <= rows
        changed = self.position != end.to_json()
        self.position = end.to_json()
        return changed


@given(st.sampled_from(["head", "tail"]), st.lists(STEPS, max_size=16))
def test_each_event_is_delivered_once_and_in_order(start: str, steps: list) -> None:
    """Streams appear, vanish and are replaced; the reader stops and goes on at any time."""
    model = Model(start)
    for kind, name, value in steps:
        match kind:
            case "append":
                model.append(name, value)
            case "drop":
                model.drop(name)
            case "replace":
                model.drop(name)
                model.append(name, 1)
            case "wait":
                model.time.advance(value)
            case "restart":
                model.restart()
            case "batch":
                model.batch(value)
    model.time.advance(30)
    while model.batch(5):
        pass
    for stream_id, numbers in model.delivered.items():
        first = model.origins[stream_id]
        assert numbers == model.events[stream_id][first : first + len(numbers)]
    for stream in model.streams.values():
        stream_id = stream.position().stream_id
        assert model.delivered[stream_id] == model.events[stream_id][model.origins[stream_id] :]
