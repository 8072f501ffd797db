"""Columns that are added, renamed, dropped and added again, against a model that knows columns."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from golden.golden_reader import read_stream
from hypothesis import given
from hypothesis import strategies as st

import segstore_ds as segstore
from segstore_ds.errors import InvalidInputError, SchemaMismatchError
from segstore_ds.stream.stream import Stream

NAMES = ["a", "b", "c", "A-2", "a-2"]
KINDS = {"int": pa.int64(), "text": pa.string(), "float": pa.float64()}
LAYOUTS = [
    segstore.Layout(),
    segstore.Layout(segment_format="arrow", inline_bytes=0),
    segstore.Layout(segment_format="parquet", inline_bytes=0, frame_rows=2),
]


@dataclass(frozen=True)
class Column:
    """A column of the model: what it is, whatever it is called."""

    uid: int
    name: str
    kind: str


@dataclass(frozen=True)
class State:
    """What a version shows: its columns, and each event's values by column."""

    columns: tuple[Column, ...]
    events: tuple[dict[int, Any], ...] = ()

    def rows(self) -> list[dict[str, Any]]:
        """Return the events as a reader sees them."""
        return [{c.name: event.get(c.uid) for c in self.columns} for event in self.events]

    def named(self, name: str) -> Column | None:
        """Return the column of a name, in any case."""
        folded = name.casefold()
        return next((c for c in self.columns if c.name.casefold() == folded), None)


@dataclass
class Model:
    """A stream and what it should show, at each of its versions."""

    stream: Stream
    state: State
    versions: dict[int, State] = field(default_factory=dict)
    uids: Iterator[int] = field(default_factory=lambda: count(10))
    flying: list[tuple[Any, Any, tuple[dict[int, Any], ...]]] = field(default_factory=list)

    def event(self, column: Column, number: int) -> Any:
        """Return a value of a column, another one for each event."""
        return {"int": number, "text": f"t{number}", "float": number / 4}[column.kind]

    def table(self, columns: tuple[Column, ...], numbers: list[int]) -> pa.Table:
        """Return events of some columns."""
        return pa.table(
            {c.name: pa.array([self.event(c, n) for n in numbers], KINDS[c.kind]) for c in columns}
        )

    def values(self, columns: tuple[Column, ...], numbers: list[int]) -> tuple[dict[int, Any], ...]:
        """Return the same events as the model has them."""
        return tuple({c.uid: self.event(c, n) for c in columns} for n in numbers)

    def now(self, state: State) -> None:
        """Take over what the newest version should show, and check that it does."""
        self.state = self.versions[self.stream.refresh().version] = state
        check(self.stream.read(), state)


def check(reader: pa.RecordBatchReader, state: State) -> None:
    """Compare what is read with what should be."""
    found = reader.read_all()
    assert found.schema.names == [c.name for c in state.columns]
    assert found.to_pylist() == state.rows()


def append(model: Model, draw: Any) -> None:
    numbers = draw(st.lists(st.integers(0, 6), min_size=1, max_size=4))
    columns, layout = model.state.columns, draw(st.sampled_from(LAYOUTS))
    model.stream.append(model.table(columns, numbers), layout=layout)
    events = (*model.state.events, *model.values(columns, numbers))
    model.now(replace(model.state, events=events))


def add(model: Model, draw: Any) -> None:
    name, kind = draw(st.sampled_from(NAMES)), draw(st.sampled_from([*KINDS]))
    if model.state.named(name):
        return
    new, numbers = (
        Column(next(model.uids), name, kind),
        draw(st.lists(st.integers(0, 6), max_size=2)),
    )
    layout = draw(st.sampled_from(LAYOUTS))
    model.stream.append(model.table((new,), numbers), merge_schema=True, layout=layout)
    events = (*model.state.events, *model.values((new,), numbers))
    model.now(State((*model.state.columns, new), events))


def change(model: Model, draw: Any) -> None:
    """Rename and drop some columns, with names that swap or are taken from dropped ones."""
    columns = model.state.columns
    dropped = draw(st.sets(st.sampled_from(columns), max_size=max(len(columns) - 1, 0)))
    kept = [c for c in columns if c not in dropped]
    renamed = {c: draw(st.sampled_from(NAMES)) for c in draw(st.sets(st.sampled_from(kept)))}
    after = tuple(replace(c, name=renamed.get(c, c.name)) for c in kept)
    given = {c.name: name for c, name in renamed.items()}
    drop = [c.name for c in dropped]
    if not given and not drop:
        return
    if len({c.name.casefold() for c in after}) < len(after):
        with pytest.raises(InvalidInputError):
            model.stream.change_schema(rename=given, drop=drop)
        return
    before = model.stream.refresh().version
    model.stream.change_schema(rename=given, drop=drop)
    assert model.stream.version == before + 1
    model.now(replace(model.state, columns=after))


def compact(model: Model, draw: Any) -> None:
    model.stream.compact(layout=draw(st.sampled_from(LAYOUTS)))
    model.now(model.state)


def restore(model: Model, draw: Any) -> None:
    version = draw(st.sampled_from(sorted(model.versions)))
    model.stream.restore(version)
    model.now(model.versions[version])


def overwrite(model: Model, draw: Any) -> None:
    """Replace all events and columns."""
    names = draw(st.sets(st.sampled_from(NAMES), min_size=1, max_size=2))
    if len({name.casefold() for name in names}) < len(names):
        return
    columns = tuple(Column(next(model.uids), name, "int") for name in sorted(names))
    model.stream.overwrite(model.table(columns, [1]), overwrite_schema=True)
    model.flying.clear()  # by their names they would fit
    model.now(State(columns, model.values(columns, [1])))


def plan(model: Model, draw: Any) -> None:
    """Stage events that are committed later, whatever happens to their columns meanwhile."""
    columns, numbers = model.state.columns, [draw(st.integers(0, 6))]
    job = model.stream.plan_write(model.stream.schema, layout=draw(st.sampled_from(LAYOUTS)))
    staged = job.stage(0, "once", model.table(columns, numbers).to_batches())
    model.flying.append((job, staged, model.values(columns, numbers)))


def land(model: Model, draw: Any) -> None:
    if not model.flying:
        return
    job, staged, values = model.flying.pop(draw(st.integers(0, len(model.flying) - 1)))
    try:
        model.stream.commit(job, [staged])
    except SchemaMismatchError:  # after an overwrite or a restore
        assert model.stream.refresh().version in model.versions
        return
    model.now(replace(model.state, events=(*model.state.events, *values)))


@given(st.data())
def test_columns_keep_their_values_whatever_they_are_called(data: st.DataObject) -> None:
    """Every version shows its own names and values, to segstore and to the format's own reader."""
    steps = data.draw(
        st.lists(
            st.sampled_from(
                [append, append, add, add, change, change, compact, restore, plan, land, overwrite]
            ),
            min_size=3,
            max_size=10,
        )
    )
    with TemporaryDirectory() as folder:
        columns = (Column(0, "a", "int"), Column(1, "b", "text"))
        stream = segstore.create(folder, pa.schema([(c.name, KINDS[c.kind]) for c in columns]))
        stream.settings.update(key_columns=data.draw(st.sampled_from([[], ["a"], ["a", "b"]])))
        if data.draw(st.booleans()):
            stream.settings.update(key_columns=None)
        model = Model(stream, State(columns))
        model.now(model.state)
        for step in steps:
            try:
                step(model, data.draw)
            except InvalidInputError as error:
                assert "setting" in error.fields  # noqa: PT017 - a key column stays
        _check_all(model, Path(folder), data)


def _check_all(model: Model, folder: Path, data: st.DataObject) -> None:
    stream, state = segstore.open(folder), model.state
    for version, shown in model.versions.items():
        check(stream.read(as_of=version), shown)
    for column in state.columns:
        value = model.event(column, data.draw(st.integers(0, 6)))
        for op, kept in (
            ("==", lambda own, value=value: own == value),
            ("in", lambda own, value=value: own == value),
            ("<", lambda own, value=value: own is not None and own < value),
            ("is null", lambda own: own is None),
        ):
            operand = [] if op == "is null" else [[value] if op == "in" else value]
            found = stream.read(filters=[[column.name, op, *operand]]).read_all().to_pylist()
            assert found == [row for row in state.rows() if kept(row[column.name])], (column, op)
    assert stream.verify().problems == []
    head, tail, events = read_stream(folder)
    assert (head, tail) == (stream.head, stream.tail)
    assert events.to_pylist() == state.rows()
