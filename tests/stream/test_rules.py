"""Rules for what is appended: who breaks one commits nothing, whichever way it writes."""

import asyncio
import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from stream_kit import SCHEMA, STAGED, Meddling, fresh_url, make_stream, numbers

import segstore_ds as segstore
from segstore_ds.errors import (
    ConflictError,
    InvalidInputError,
    UnsupportedVersionError,
    WriterConflictError,
)
from segstore_ds.format import root as roots
from segstore_ds.stream.opening import open as open_on
from segstore_ds.write.layout import Layout

RULES = {"not_null": ["s"], "checks": {"positive": "n >= 0"}}
BAD = pa.table({"n": [1, None, -3, -4], "s": ["a", "b", "c", None]}, SCHEMA)
LOST = pa.table({"n": [1, 2], "s": ["a", None]}, SCHEMA)
GOOD = numbers(0, 3)
WIDER = pa.table({"s": ["x"], "z": [1]})


@pytest.fixture(params=["inline", "staged"])
def stream(request):
    made = make_stream(1)[0]
    made.settings.update(rules=RULES)
    made.how = {"layout": STAGED if request.param == "staged" else Layout()}
    return made


def plan_write(stream, data):
    job = stream.plan_write(data.schema, **stream.how)
    job = replace(job, rules=pickle.loads(pickle.dumps(job.rules)))  # noqa: S301 - our own
    stream.commit(job, [job.open_task(0, "a").stage(data.to_batches())])


WAYS = {
    "append": lambda stream, data: stream.append(data, **stream.how),
    "batches": lambda stream, data: stream.append(
        iter(data.to_batches(max_chunksize=1)), **stream.how
    ),
    "events": lambda stream, data: stream.append(data.to_pylist(), **stream.how),
    "idempotent": lambda stream, data: stream.append(data, writer_id="w", batch_id=1, **stream.how),
    "awaited": lambda stream, data: asyncio.run(stream.aappend(data, **stream.how)),
    "overwrite": lambda stream, data: stream.overwrite(data, **stream.how),
    "plan_write": plan_write,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_event_that_breaks_a_rule_is_named_and_nothing_is_committed(stream, way):
    before = stream.version
    with pytest.raises(
        InvalidInputError, match="row=2, column='n', rule='positive: n >= 0', value=-3"
    ):
        way(stream, BAD)
    with pytest.raises(InvalidInputError, match="row=1, column='s', rule='NOT NULL', value=None"):
        way(stream, LOST)
    assert stream.refresh().version == before
    way(stream, GOOD)
    assert stream.tail == 13
    assert stream.verify().ok


def test_null_passes_a_check_as_in_sql():
    stream = make_stream(0)[0]
    stream.settings.update(rules={"checks": {"few": "n < 10 and not s == 'x'"}})
    stream.append(pa.table({"n": [1, None, None], "s": [None, None, "y"]}, SCHEMA))
    for event in ({"n": None, "s": "x"}, {"n": 10, "s": None}):
        with pytest.raises(InvalidInputError, match=r"column=\['n', 's'\], rule=.few: .*value=\["):
            stream.append([event])


def test_check_of_a_float_sees_nan_above_every_number():
    schema = pa.schema([("x", pa.float64())])
    stream = segstore.create("memory://rules-nan", schema)
    stream.settings.update(rules={"checks": {"low": "x < 5"}, "not_null": ["x"]})
    with pytest.raises(InvalidInputError, match="row=1, column='x', rule='low: x < 5', value=nan"):
        stream.append(pa.table({"x": [1.0, np.nan]}))


def test_rows_of_threads_are_counted_over_all(monkeypatch):
    monkeypatch.setattr("segstore_ds.write.inputs.PART_ROWS", 10)
    monkeypatch.setattr("segstore_ds.write.inputs.PART_BYTES", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    stream = make_stream(0)[0]
    stream.settings.update(rules=RULES)
    with pytest.raises(InvalidInputError, match="row=57, column='n'"):
        stream.append(pa.table({"n": [*range(57), -1, -2], "s": ["s"] * 59}, SCHEMA))
    assert stream.refresh().tail == 0


def test_appender_refuses_one_call_and_goes_on():
    stream = make_stream(0)[0]
    stream.settings.update(rules=RULES)
    with stream.appender() as appender:
        appender.append({"n": 0, "s": "s0"})
        with pytest.raises(InvalidInputError, match=r"row=0, column='n', .*value=-1"):
            appender.append({"n": -1, "s": "x"})
        with pytest.raises(InvalidInputError, match=r"row=2, column='n', .*value=-3"):
            appender.append(BAD)
        with pytest.raises(InvalidInputError, match="row=0, column='s', rule='NOT NULL'"):
            appender.append({"n": 1})
        assert appender.append(numbers(1, 3)) == 1
    assert stream.refresh().read().read_all() == numbers(0, 3)


def test_appender_checks_events_by_types_that_others_have_widened():
    stream = segstore.create(
        "memory://rules-wide", pa.schema([("n", pa.int32()), ("s", pa.string())])
    )
    with stream.appender(merge_schema=True) as appender:
        stream.append(pa.table({"n": [0.5], "s": ["a"]}), merge_schema=True)
        stream.settings.update(rules={"checks": {"low": "n < 1.5"}})
        appender.append({"n": 1, "s": "b"})
        with pytest.raises(InvalidInputError, match=r"row=0, column='n', .*value=2.0"):
            appender.append({"n": 2})
    assert stream.refresh().read().read_all()["n"].to_pylist() == [0.5, 1.0]


def test_appender_goes_on_when_others_add_a_column_with_a_rule():
    """The events that it holds lack the column: it is null, which passes the check."""
    stream, storage = make_stream(0)
    with stream.appender(merge_schema=True, flush_seconds=None) as appender:
        appender.append({"n": 1, "s": "a"})
        other = open_on(storage, clock=stream._log.clock)
        other.append(pa.table({"n": [2], "s": ["b"], "x": [1]}), merge_schema=True)
        other.settings.update(rules={"checks": {"positive": "x > 0"}})
        assert appender.flush().rows == 1
    assert stream.refresh().read().read_all()["n"].to_pylist() == [2, 1]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1 << 62], pa.timestamp("us")),
        pa.array([-(1 << 62)], pa.timestamp("us", "UTC")),
        pa.array([1 << 30], pa.date32()),
    ],
    ids=lambda column: str(column.type),
)
def test_a_time_that_python_cannot_hold_breaks_a_rule_like_others(column):
    schema = pa.schema([("c", column.type)])
    stream = segstore.create(fresh_url(), schema)
    stream.settings.update(rules={"checks": {"none": "c is null"}})
    with pytest.raises(InvalidInputError, match=r"row=0, column='c', rule='none: c is null', val"):
        stream.append(pa.table([column], schema))


def test_nanoseconds_break_a_rule_like_others_without_pandas():
    program = """
import sys
class NoPandas:
    def find_spec(name, *_):
        if name.partition(".")[0] == "pandas":
            raise ImportError(name)
sys.meta_path.insert(0, NoPandas)
import pyarrow as pa, segstore_ds as segstore
schema = pa.schema([("c", pa.timestamp("ns"))])
stream = segstore.create("memory://ns", schema)
stream.settings.update(rules={"checks": {"none": "c is null"}})
try:
    stream.append(pa.table([pa.array([1], schema[0].type)], schema))
except segstore.errors.InvalidInputError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert "rule='none: c is null', value=" in done.stdout


@pytest.mark.parametrize("change", [{"rename": {"n": "k"}}, {"drop": ["n"]}])
@pytest.mark.parametrize(
    "settings",
    [{"rules": {"checks": {"a": "n > 0"}}}, {"rules": {"not_null": ["n"]}}, {"key_columns": ["n"]}],
    ids=["check", "not-null", "key"],
)
def test_settings_that_name_columns_of_before_are_refused(change, settings):
    """Another process changes the columns between the look and the commit."""
    stream, storage = make_stream(1)
    clock = stream._log.clock
    meddling = Meddling(
        storage, "create log/", lambda: open_on(storage, clock=clock).change_schema(**change)
    )
    late = open_on(meddling, clock=clock)
    with pytest.raises(ConflictError, match="columns of the stream have changed meanwhile"):
        late.settings.update(**settings)
    other = open_on(storage, clock=clock)
    meddling = Meddling(storage, "create log/", lambda: other.append(WIDER, merge_schema=True))
    open_on(meddling, clock=clock).settings.update(retention={"max_age": "30d"})  # names no column
    assert other.schema.names[-1] == "z"
    stream.refresh().append(pa.table({"s": ["x"]}), merge_schema=True)


@pytest.mark.parametrize("layout", [Layout(), STAGED], ids=["inline", "staged"])
def test_appender_goes_on_when_the_rules_change_unless_an_event_breaks_them(layout):
    stream = make_stream(0)[0]
    with stream.appender(layout=layout) as appender:
        for n, rules in enumerate([RULES, {"not_null": ["n"]}, None]):
            appender.append({"n": n, "s": "s"})
            stream.settings.update(rules=rules)
            assert appender.flush().rows == 1
        appender.append(BAD)
        stream.settings.update(rules=RULES)
        for _ in range(2):
            with pytest.raises(InvalidInputError, match=r"row=2, column='n', .*value=-3"):
                appender.flush()
        assert appender.read().read_all() == BAD
        stream.settings.update(rules=None)
        assert appender.resume() == 4
    assert stream.refresh().read().read_all()["n"].to_pylist() == [0, 1, 2, 1, None, -3, -4]
    stream.verify().check()


def test_write_that_was_planned_before_a_rule_is_refused():
    stream = make_stream(0)[0]
    job = stream.plan_write(SCHEMA)
    task = job.open_task(0, "a").stage(BAD.to_batches())
    other = open_on(stream._log.storage, clock=stream._log.clock)
    other.settings.update(rules=RULES)
    with pytest.raises(ConflictError, match="rules of the stream have changed"):
        stream.commit(job, [task])
    assert stream.refresh().tail == 0


def test_append_by_a_handle_that_has_not_seen_a_rule_is_checked_by_it():
    stream = make_stream(0)[0]
    other = open_on(stream._log.storage, clock=stream._log.clock)
    other.settings.update(rules=RULES)
    with pytest.raises(InvalidInputError, match="row=2, column='n'"):
        stream.append(BAD)
    other.settings.update(rules=None)
    stream.append(BAD)
    assert stream.tail == 4


def test_repeated_batch_changes_nothing_whatever_the_rules_are_now():
    stream = make_stream(0)[0]
    stream.append(BAD, writer_id="w", batch_id=1)
    stream.settings.update(rules=RULES)
    assert stream.append(BAD, writer_id="w", batch_id=1).repeated
    assert stream.refresh().tail == 4


def test_rules_hold_for_what_is_appended_from_then_on():
    """What is there stays, and may be restored, compacted, redacted and copied."""
    stream = make_stream(0)[0]
    for n in range(4):
        stream.append(BAD.slice(n, 1))
    version = stream.version
    stream.settings.update(rules=RULES)
    stream.append(GOOD)
    stream.compact()
    stream.redact("n == 0", columns=["s"], reason="asked")
    stream.restore(version, allow_redacted=True)
    assert stream.read().read_all() == BAD
    with pytest.raises(InvalidInputError, match="NOT NULL"):
        stream.append(BAD.slice(3, 1))


@pytest.mark.parametrize("mode", ["segments", "clone", "events"])
def test_copy_has_the_rules_and_checks_nothing_again(tmp_path, mode):
    stream = segstore.create(tmp_path / "from", SCHEMA)
    stream.append(BAD)
    stream.change_schema(rename={"s": "text"})
    stream.settings.update(rules={**RULES, "not_null": ["text"]})
    stream.copy_to(tmp_path / mode, mode=mode, copy_id="test")
    copy = segstore.open(tmp_path / mode)
    assert copy.tail == 4
    assert copy.settings.rules == stream.settings.rules
    assert "rules" in copy._context.log.root.writer_features
    for each in (stream, copy):
        with pytest.raises(InvalidInputError, match="column='text', rule='NOT NULL'"):
            each.append([{"n": 1}])


def test_rules_follow_a_rename_or_refuse_it():
    stream = make_stream(0)[0]
    stream.settings.update(rules=RULES)
    stream.change_schema(rename={"s": "text"})
    assert stream.settings.rules.not_null == ("text",)
    with pytest.raises(InvalidInputError, match="column='text', rule='NOT NULL'"):
        stream.append([{"n": 1}])
    stream.append([{"n": 1, "text": "a"}], layout=STAGED)
    for change in ({"rename": {"n": "m"}}, {"drop": ["n"]}):
        with pytest.raises(InvalidInputError, match=r"columns=\['n'\], rule='positive"):
            stream.change_schema(**change)
    with pytest.raises(InvalidInputError, match="setting='rules'"):
        stream.change_schema(drop=["text"])
    with pytest.raises(InvalidInputError, match="needs a column that would be gone"):
        stream.overwrite(pa.table({"n": [1]}), overwrite_schema=True)
    with pytest.raises(InvalidInputError, match="does not fit its columns: rule='n >= 0'"):
        stream.overwrite(pa.table({"text": ["a"]}), overwrite_schema=True)
    assert stream.refresh().tail == 1


def test_column_that_a_write_lacks_is_null_and_one_that_it_adds_has_no_rule():
    stream = make_stream(0)[0]
    stream.settings.update(rules=RULES)
    with pytest.raises(InvalidInputError, match="row=0, column='s', rule='NOT NULL'"):
        stream.append(pa.table({"n": [1]}), merge_schema=True)
    stream.append(
        pa.table({"n": [1], "s": ["a"], "new": [None]}).cast(
            pa.schema([*SCHEMA, ("new", pa.int64())])
        ),
        merge_schema=True,
    )
    stream.settings.update(rules={"not_null": ["new"], "checks": {"positive": "n > 0"}})
    with pytest.raises(InvalidInputError, match="column='new', rule='NOT NULL'"):
        stream.append(numbers(1, 2), merge_schema=True)
    wide = pa.table({"n": [0.5, -0.5], "s": ["a", "b"], "new": [1, 2]})
    with pytest.raises(InvalidInputError):
        stream.append(wide, merge_schema=True)


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({"not_null": ["x"]}, "no such column in a rule.*column='x'"),
        ({"not_null": "s"}, "not rules"),
        ({"not_null": ["s.a"]}, "name columns, not fields"),
        ({"checks": {"a b": "n > 0"}}, "not a name of a rule"),
        ({"checks": {"a": ""}}, "a check is empty"),
        ({"checks": {"a": "x > 0"}}, "no such column in a filter"),
        ({"checks": {"a": "n > 'x'"}}, "does not fit its column"),
        ({"checks": {"a": 3}}, "not rules"),
        ({"checks": {"a": f"s == '{'x' * 20_000}'"}}, "too long"),
        ({"check": {}}, "not rules"),
        (3, "not rules"),
    ],
)
def test_what_is_no_rule_is_refused(rules, told):
    stream = make_stream(0)[0]
    with pytest.raises(InvalidInputError, match=told):
        stream.settings.update(rules=rules)


def test_rules_end_and_leave_the_feature_that_stops_older_writers(monkeypatch):
    stream = make_stream(0)[0]
    assert stream.settings.rules is None
    stream.settings.update(rules=RULES)
    found = stream.settings.rules
    assert (found.not_null, found.checks) == (("s",), {"positive": "n >= 0"})
    stream.settings.update(rules=replace(found, not_null=()))
    assert stream.settings.rules == replace(found, not_null=())
    with monkeypatch.context() as patch:
        patch.setattr(roots, "WRITER_FEATURES", frozenset(("column-names",)))
        with pytest.raises(UnsupportedVersionError, match="rules"):
            stream.append(GOOD)
    for nothing in (None, {}):
        stream.settings.update(rules=RULES)
        stream.settings.update(rules=nothing)
        assert stream.settings.rules is None
    stream.append(BAD)
    assert stream.tail == 4


def test_other_events_under_a_batch_id_are_refused_beside_rules():
    stream = make_stream(0)[0]
    stream.settings.update(rules=RULES)
    stream.append(GOOD, writer_id="w", batch_id=1)
    with pytest.raises(WriterConflictError, match="other events"):
        stream.append(numbers(5, 9), writer_id="w", batch_id=1)
