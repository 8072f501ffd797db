"""A lone surrogate, which JSON can write and UTF-8 can't, broke every later commit."""

import os
import uuid
from pathlib import Path

import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.cli.main import main
from segstore_ds.errors import InvalidInputError
from segstore_ds.format.root import Root, Tag
from segstore_ds.log.commit import Change
from segstore_ds.status.table import Slot
from segstore_ds.status.writers import WriterKey
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on

TABLE = pa.table({"n": [1]})


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take any writer's id, as versions did before they were checked."""
    monkeypatch.setattr("segstore_ds.status.writers.is_text", lambda _: True)


@pytest.mark.usefixtures("older")
def test_lone_surrogates_are_carried_through() -> None:
    """As a writer's id, and within what a newer version stored in the root."""
    storage = open_storage(f"memory://{uuid.uuid4().hex}")
    stream = create_on(storage, TABLE.schema)
    for _ in range(2):
        stream.append(TABLE, writer_id="\ud800", batch_id=1)
    assert open_on(storage).tail == 1

    def add_tag(root: Root, slot: Slot) -> Change[None]:
        from dataclasses import replace

        tags = {"\udfff": Tag(0, slot.version, slot.time_us)}
        return Change(replace(root, tags=tags, operation="tag"))

    stream._log.commit(add_tag, transaction="t" * 32)
    stream.append(TABLE)
    root = open_on(storage)._log.root
    assert (list(root.tags), list(root.writers)) == (["\udfff"], ["\ud800"])
    stream.verify().check()


@pytest.mark.usefixtures("older")
def test_lone_surrogates_leave_the_root_with_the_history() -> None:
    """When there are many, rows of commits move into Arrow's strings: that ended every commit."""
    storage = open_storage(f"memory://{uuid.uuid4().hex}")
    stream = create_on(storage, TABLE.schema)
    for batch in range(140):
        stream.append(TABLE, writer_id="\ud800", batch_id=batch)
    assert stream._log.root.history_parts
    assert "\\ud800" in stream.history().read_all()["writer_id"].to_pylist()
    stream.verify().check()


@pytest.mark.usefixtures("older")
def test_lone_surrogates_are_shown_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The view of writers, and `segstore info`, failed for good."""
    stream = segstore.create(tmp_path / "s", TABLE.schema)
    stream.append(TABLE, writer_id=os.fsdecode(b"job-\xe9.csv"), batch_id=1)
    (row,) = stream.metadata("writers").read_all().to_pylist()
    assert row["writer_id"] == "job-\\udce9.csv"
    assert stream.history().read_all()["writer_id"].to_pylist()[-1] == row["writer_id"]
    assert main(["info", stream.url]) == 0
    assert "job-\\udce9.csv (batch 1)" in capsys.readouterr().out


@pytest.mark.parametrize("field", ["writer_id", "owner", "claim"])
def test_lone_surrogates_are_refused_at_the_door(field: str) -> None:
    texts = {"writer_id": "w", field: os.fsdecode(b"job-\xe9.csv")}
    with pytest.raises(InvalidInputError, match=f"{field} of a writer"):
        WriterKey(batch_id=1, **texts)


def test_names_with_lone_surrogates_never_reach_a_root(tmp_path: Path) -> None:
    """Of writers, tags, readers and copies alike."""
    stream, name = segstore.create(tmp_path / "s", TABLE.schema), "x\udce9"
    for work in (
        lambda: stream.append(TABLE, writer_id=name, batch_id=1),
        lambda: stream.tags.set(name),
        lambda: stream.readers.register(name),
        lambda: stream.readers.register("r", owner=name),
        lambda: stream.copy_to(tmp_path / "c", copy_id=name),
    ):
        with pytest.raises(InvalidInputError):
            work()
    assert stream.refresh().version == 0
