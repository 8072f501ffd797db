"""Settings hold for the column that has the name they show, whatever became of the one before."""

import uuid
from collections.abc import Callable

import pyarrow as pa
import pytest
from stream_kit import DAY, wait
from virtual_time import TimedStorage, VirtualTime

from segstore_ds.errors import InvalidInputError
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.stream import Stream

OLD = pa.schema([("email", pa.string()), ("at", pa.int64())])
OTHER = pa.table({"plan": ["bob@b.org"], "n": [5]})
NAMES = {"plan": "email", "n": "at"}
Verb = Callable[[Stream], object]


def make(schema: pa.Schema = OLD) -> tuple[Stream, TimedStorage]:
    """Return an empty stream, and its storage with the clock."""
    time = VirtualTime(1)
    storage = TimedStorage(open_storage(f"memory://{uuid.uuid4().hex}"), time)
    return create_on(storage, schema, clock=time.clock, upkeep=None), storage


# How the columns go, and how columns of their names come back; version 1 is before the settings.
GONE: dict[str, Verb] = {
    "overwrite": lambda stream: stream.overwrite(OTHER, overwrite_schema=True),
    "restore": lambda stream: stream.restore(1),
}
BACK: dict[str, Verb] = {
    "rename": lambda stream: stream.change_schema(rename=NAMES),
    "extend": lambda stream: stream.append(OTHER.rename_columns(NAMES), merge_schema=True),
    "replace": lambda stream: stream.overwrite(OTHER.rename_columns(NAMES), overwrite_schema=True),
}


@pytest.mark.parametrize("back", BACK)
@pytest.mark.parametrize("gone", GONE)
def test_column_of_that_name_has_the_settings(gone: str, back: str) -> None:
    """By a rename, as a new column, or with a new schema, after the old one is gone."""
    stream, storage = make()
    stream.overwrite(OTHER, overwrite_schema=True)
    stream.overwrite(pa.table({"a": ["ada@a.org"], "at": [1]}), overwrite_schema=True)
    stream.change_schema(rename={"a": "email"})  # it is stored as `a`
    stream.settings.update(expiry={"email": "3d"}, key_columns=["email"], time_column="at")
    GONE[gone](stream)
    assert stream.settings.time_column is None
    assert stream.settings.key_columns == ()
    assert [rule.column for rule in stream.settings.expiry] == ["email"]
    # Another column that looks like the old one does as it is stored has nothing to do with it.
    stream.append(pa.table({"plan": ["x"], "n": [1], "a": ["kept"]}), merge_schema=True)
    BACK[back](stream)
    settings = stream.settings
    assert (settings.key_columns, settings.time_column) == (("email",), "at")
    assert [rule.column for rule in settings.expiry] == ["email"]
    wait(storage, 9 * DAY)
    assert stream.maintain().expired >= 1
    rows = stream.read().read_all().to_pylist()
    assert {row["email"] for row in rows} == {None}
    assert {row.get("a") for row in rows} <= {"kept", None}
    assert back == "replace" or "kept" in {row["a"] for row in rows}
    stream.verify().check()


def test_settings_follow_a_column_there_and_back() -> None:
    """Through swapped names, and versions that are restored."""
    stream, _ = make(pa.schema([("email", pa.string()), ("b", pa.string())]))
    stream.settings.update(expiry={"email": "30d"}, key_columns=["email", "b"])
    before = stream.version
    stream.change_schema(rename={"email": "b", "b": "email"})
    for names in (["b", "email"], ["email", "b"]):
        assert stream.settings.key_columns == (*names,)
        assert stream.settings.expiry[0].column == names[0]
        stream.restore(before)


def test_column_that_would_be_taken_for_another_is_refused() -> None:
    """Nothing changes; the error says which setting."""
    stream, _ = make(pa.schema([("email", pa.string()), ("a", pa.string()), ("t", pa.int64())]))
    stream.change_schema(rename={"email": "mail"})
    stream.change_schema(rename={"a": "email"})
    stream.settings.update(expiry={"email": "30d"}, time_column="t")
    version = stream.version
    with pytest.raises(InvalidInputError, match=r"column='email'.*settings"):
        stream.overwrite(pa.table({"mail": ["x"]}), overwrite_schema=True)
    assert stream.refresh().version == version
    stream.overwrite(pa.table({"n": ["x"], "t": [1]}), overwrite_schema=True)
    with pytest.raises(InvalidInputError, match=r"time column would expire.*column='email'"):
        stream.change_schema(rename={"t": "email"})
    assert stream.refresh().settings.time_column == "t"


def test_version_whose_column_is_only_stored_under_that_name_is_not_restored() -> None:
    """There it is called otherwise, so the setting would mean another column than it shows."""
    stream, _ = make()
    stream.change_schema(rename={"email": "mail"})
    version = stream.version
    stream.overwrite(pa.table({"email": ["x"]}), overwrite_schema=True)
    stream.settings.update(expiry={"email": "30d"}, key_columns=["email"])
    stream.overwrite(pa.table({"n": ["x"]}), overwrite_schema=True)
    with pytest.raises(InvalidInputError, match=r"column='email'.*settings"):
        stream.restore(version)
    stream.settings.update(expiry={}, key_columns=[])
    stream.restore(version)
    assert stream.schema.names == ["mail", "at"]


def test_rule_that_can_t_be_carried_out_stops_no_other() -> None:
    """Others are carried out, and the rest of `maintain`; then its error says what to do."""
    stream, storage = make(pa.schema([("email", pa.string()), ("phone", pa.string())]))
    stream.append({"email": "ada@a.org", "phone": "1"})
    version = stream.version
    stream.append({"email": "x", "phone": "2", "plan": "free"}, merge_schema=True)
    free = {"age": "30d", "filters": "plan == 'free'"}
    stream.settings.update(expiry={"email": free, "phone": "30d"})
    stream.restore(version)
    stream.publish("delta", auto=True)
    wait(storage, 40 * DAY)
    with pytest.raises(InvalidInputError, match=r"column='email'.*settings.update\(expiry"):
        stream.maintain()
    assert stream.read().read_all().to_pylist() == [{"email": "ada@a.org", "phone": None}]
    assert stream.published["delta"].version == stream.version


def test_rule_of_a_column_that_was_the_time_column() -> None:
    """A new schema made it a text: it expires, and is not the time column again."""
    stream, storage = make(pa.schema([("ts", pa.int64())]))
    stream.settings.update(time_column="ts")
    stream.overwrite(pa.table({"ts": ["ada"]}), overwrite_schema=True)
    stream.settings.update(expiry={"ts": "1d"})
    wait(storage, 9 * DAY)
    assert stream.maintain().expired == 1
    stream.overwrite(pa.table({"ts": [1]}), overwrite_schema=True)
    assert (stream.settings.time_column, len(stream.settings.expiry)) == (None, 1)


def test_filter_that_comes_true_after_the_age() -> None:
    """Values that another rule, or a redaction, sets to null may let an older event match."""
    stream, storage = make(pa.schema([("email", pa.string()), ("plan", pa.string())]))
    rule = {"age": "3d", "filters": "plan is null"}
    stream.settings.update(expiry={"email": rule, "plan": "60d"})
    for name in ("ada", "bob"):
        stream.append({"email": name, "plan": f"{name}'s"})
    for days in (10, 10, 10):
        wait(storage, days * DAY)
        stream.maintain()
    assert stream.read().read_all()["email"].to_pylist() == ["ada", "bob"]
    stream.redact('plan == "ada\'s"', columns=["plan"], redact_id="r")
    wait(storage, DAY)
    stream.maintain()
    assert stream.read().read_all()["email"].to_pylist() == [None, "bob"]
    for _ in range(2):
        wait(storage, 40 * DAY)
        stream.maintain()
    assert stream.read().read_all()["email"].to_pylist() == [None, None]
    version = stream.version
    wait(storage, DAY)
    assert (stream.maintain().expired, stream.version - version) == (0, 3)  # a rule, a rule, upkeep
