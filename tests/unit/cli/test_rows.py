"""The commands for rows, and files of every format to and fro."""

import datetime as dt
import decimal
import gc
import io
import json
import os
import sys
import threading
from types import SimpleNamespace

import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.cli import files
from segstore_ds.cli.files import Format
from segstore_ds.cli.main import main

EVENTS = pa.table({"user": ["ada", "b\x1b[31m", None], "n": [1, 2, 3]})
WHEN = dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC)
MANY = pa.table(
    {
        "n": pa.array([1, None], pa.int64()),
        "text": ["ä\n", None],
        "empty": ["", None],
        "time": pa.array([WHEN, None], pa.timestamp("us", "UTC")),
        "flag": [True, None],
        "share": [0.5, None],
        "float": pa.array([3906221824.0, None], pa.float32()),
        "cost": pa.array([decimal.Decimal("1.20"), None], pa.decimal128(9, 2)),
        "raw": pa.array([b"\xff\x00", None]),
        "list": [[1, 2], None],
    }
)


@pytest.fixture
def stream(tmp_path):
    made = segstore.create(tmp_path / "clicks", EVENTS.schema)
    made.append(EVENTS)
    return made


@pytest.fixture
def tiny_blocks(monkeypatch):
    """Let a file of a few lines have several blocks."""
    monkeypatch.setattr(files, "_BLOCK_BYTES", 64)


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_cat_takes_cuts_columns_and_conditions(stream, capsys):
    assert main(["cat", stream.url, "-c", "n", "--where", "n > 1 and n < 3", "--json"]) == 0
    assert lines(capsys) == [{"n": 2}]
    assert main(["cat", stream.url, "--start", "1", "--end", "2", "--json"]) == 0
    assert lines(capsys) == [{"user": "b\x1b[31m", "n": 2}]
    assert main(["cat", stream.url, "--as-of", "0", "--json"]) == 0
    assert lines(capsys) == []
    assert main(["cat", stream.url, "--where", "n > 1", "--where", "n < 3"]) == 2


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("n < 2 or n > 2", [1, 3]),
        ("(n < 2 or n > 2) and n > 1", [3]),
        ("n in (1, 3) and user is not null", [1]),
    ],
)
def test_a_filter_is_a_text_as_in_python(stream, where, found, capsys):
    assert main(["cat", stream.url, "-c", "n", "--where", where, "--json"]) == 0
    assert [row["n"] for row in lines(capsys)] == found


@pytest.mark.parametrize("text", ["", "3", '["n", ">", 3]', "n >", "n > m", "nobody == 3"])
def test_what_is_no_condition_is_refused(stream, text, capsys):
    assert main(["cat", stream.url, "--where", text]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_cat_shows_the_first_and_the_last(stream, capsys):
    for rows, shown in ((2, [1, 2]), (0, []), (-1, [3]), (-2, [2, 3]), (-9, [1, 2, 3])):
        assert main(["cat", stream.url, "-n", str(rows), "--json"]) == 0
        assert [row["n"] for row in lines(capsys)] == shown


def test_the_last_are_those_between_the_cuts_that_match(stream, capsys):
    for n in range(4, 9):
        stream.append(EVENTS.slice(0, 1).set_column(1, "n", [[n]]))
    for flags, shown in (
        (["--end", "5"], [4, 5]),
        (["--start", "7"], [8]),
        (["--as-of", "1"], [2, 3]),
        (["--where", "n < 7"], [5, 6]),
        (["--where", "n == 1"], [1]),
        (["--where", "n > 99"], []),
    ):
        assert main(["cat", stream.url, "-n", "-2", "--json", *flags]) == 0
        assert [row["n"] for row in lines(capsys)] == shown


def test_cat_follows_to_a_seal(stream, capsys):
    stream.seal()
    for flags, shown in (([], [1, 2, 3]), (["-n", "-2"], [2, 3]), (["--start", "2"], [3])):
        assert main(["cat", stream.url, "-f", "--json", *flags]) == 0
        assert [row["n"] for row in lines(capsys)] == shown
    for wrong in (["-n", "2"], ["--end", "2"], ["--as-of", "0"]):
        assert main(["cat", stream.url, "-f", *wrong]) == 2
        assert "-f has no end" in capsys.readouterr().err


def test_cat_follows_as_a_named_reader(stream, capsys):
    stream.seal()
    follow = ["cat", stream.url, "-f", "-n", "-1", "--reader", "r", "--owner", "a", "--json"]
    for shown in ([3], []):
        assert main(follow) == 0
        assert [row["n"] for row in lines(capsys)] == shown
    stream.readers.register("r", owner="a", start=1)
    assert main(follow) == 0
    assert [row["n"] for row in lines(capsys)] == [2, 3]  # all that it has not seen
    other = [*follow[:-2], "b", "--json"]
    assert main(other) == 2
    assert "at its position with --takeover, or free" in capsys.readouterr().err
    assert main([*other, "--takeover"]) == 0
    assert main(["cat", stream.url, "-f", "--takeover"]) == 2
    capsys.readouterr()
    assert main(["cat", stream.url, "-f", "--start", "1", "--reader", "new", "--json"]) == 0
    assert [row["n"] for row in lines(capsys)] == [2, 3]
    assert main(["cat", stream.url, "--reader", "r"]) == 2


def test_create_by_columns_and_by_a_file(stream, tmp_path, capsys):
    columns = ["--column", "t:timestamp", "--column", "n:int64"]
    assert main(["create", str(tmp_path / "a"), *columns]) == 0
    found = segstore.open(tmp_path / "a").schema
    assert found == pa.schema([("t", pa.timestamp("us", "UTC")), ("n", pa.int64())])
    assert main(["export", stream.url, str(tmp_path / "x.parquet")]) == 0
    assert main(["create", str(tmp_path / "b"), "--like", str(tmp_path / "x.parquet")]) == 0
    assert segstore.open(tmp_path / "b").schema == EVENTS.schema
    assert main(["create", str(tmp_path / "c"), "--column", "n:whole"]) == 2
    assert main(["create", str(tmp_path / "c")]) == 2
    assert "no type 'whole'" in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "arrow", "csv"])
def test_rows_survive_a_file(tmp_path, ending, capsys):
    events = MANY.drop_columns(["list"]) if ending == "csv" else MANY
    segstore.create(tmp_path / "a", events.schema).append(events)
    copied = segstore.create(tmp_path / "b", events.schema)
    file = str(tmp_path / f"rows.{ending}")
    assert main(["export", str(tmp_path / "a"), file]) == 0
    assert main(["append", copied.url, file]) == 0
    assert copied.read().read_all().to_pylist() == events.to_pylist()
    assert main(["export", copied.url, file]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["export", copied.url, file, "--force", "--json"]) == 0
    assert lines(capsys) == [{"file": file, "events": 2}]
    assert [path.name for path in tmp_path.glob("*rows*")] == [f"rows.{ending}"]
    assert main(["export", copied.url, str(tmp_path / "none" / f"rows.{ending}")]) == 2
    assert "can't be written" in capsys.readouterr().err


NAN = pa.array([float("nan"), float("-inf"), None])
TYPED = {
    "nan": NAN,
    "date": pa.array([WHEN.date(), None]),
    "time": pa.array([WHEN.time(), None]),
    "time_ns": pa.array([1, 43_200_123_456_789, None], pa.time64("ns")),
    "times": pa.array([[1], None], pa.list_(pa.time64("ns"))),
    "far": pa.array([10**18, -(10**17), 1 - (1 << 63), None], pa.timestamp("us", "UTC")),
    "far_naive": pa.array([(1 << 63) - 1, -(1 << 63), None], pa.timestamp("us")),
    "first_ns": pa.array([-(1 << 63), (1 << 63) - 1, None], pa.timestamp("ns")),
    "far_days": pa.array([10**7, -(10**6), None], pa.date32()),
    "lasts": pa.array([dt.timedelta(days=-3, seconds=1.5), None]),
    "lasts_ns": pa.array([1500, None], pa.duration("ns")),
    "at_ns": pa.array([1, None], pa.timestamp("ns", "UTC")),
    "map": pa.array([[("a", b"\xff")], None], pa.map_(pa.string(), pa.binary())),
    "bytes": pa.array([[{"b": b"\xff"}], None], pa.list_(pa.struct([("b", pa.binary())]))),
    "dates": pa.array([[WHEN.date()], None]),
    "nans": pa.ListArray.from_arrays([0, 3], NAN),
}


@pytest.mark.parametrize("name", TYPED)
def test_values_of_any_type_survive_json(tmp_path, name):
    """What Arrow's parser does not take is read back as it was printed."""
    events = pa.table({name: TYPED[name], "n": [7] * len(TYPED[name])})
    stream = segstore.create(tmp_path / "a", events.schema)
    stream.append(events)
    assert main(["export", stream.url, str(tmp_path / "rows.jsonl")]) == 0
    assert main(["append", stream.url, str(tmp_path / "rows.jsonl")]) == 0
    first, second = stream.refresh().read().read_all().to_batches()
    assert str(first) == str(second)  # NaN is like NaN here
    assert main(["cat", stream.url]) == 0


@pytest.mark.parametrize(
    ("column", "line"),
    [
        ("n:int64", '{"n": "4"}'),
        ("n:int64", '{"n": true}'),
        ("n:int64", '{"n": 1.5}'),
        ("n:double", '{"n": "four"}'),
        ("n:timestamp", '{"n": 5}'),
        ("n:date32", '{"n": "2026-13-01"}'),
        ("n:binary", '{"n": "?"}'),
        ("n:binary", "[1]"),
        ("n:string", '{"n": 4}'),
        ("n:double", '{"n": 9007199254740993}'),
        ("n:date32", '{"n": 1}'),
        ("n:time64[ns]", '{"n": 1}'),
        ("n:timestamp", '{"n": "2026-01-02T03:04:05"}'),
        ("n:timestamp[us]", '{"n": "2026-01-02T03:04:05Z"}'),
        ("n:duration[us]", '{"n": "12:00:00.0000001"}'),
        ("n:float", '{"n": 16777217}'),
        ("n:float", '{"n": 1e39}'),
        ("n:int64", '{"n": 1, "n": 2}'),
        ("n:int64", '{"n": 1} {"n": 2}'),
        ("n:int64", '{"n": 1} null'),
        ("n:int64", "null"),
    ],
)
def test_json_of_another_type_is_refused(tmp_path, column, line, capsys):
    assert main(["create", str(tmp_path / "a"), "--column", column]) == 0
    (tmp_path / "rows.jsonl").write_text(f"{line}\n")
    assert main(["append", str(tmp_path / "a"), str(tmp_path / "rows.jsonl")]) == 2
    said = capsys.readouterr().err
    assert "rows.jsonl" in said
    assert "line 1" in said
    assert segstore.open(tmp_path / "a").tail == 0


def test_numbers_of_csv_that_are_none_are_no_nulls(tmp_path):
    stream = segstore.create(tmp_path / "a", pa.schema([("x", pa.float64())]))
    stream.append(pa.table({"x": NAN}))
    assert main(["export", stream.url, str(tmp_path / "x.csv")]) == 0
    assert main(["append", stream.url, str(tmp_path / "x.csv")]) == 0
    assert str(stream.refresh().read().read_all()["x"].to_pylist()) == str(2 * NAN.to_pylist())


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_long_rows_and_line_ends_in_values_survive_a_file(tmp_path, ending, monkeypatch):
    """Files are parsed block by block: none ends within a value, and no row is too long for one."""
    lines_in = [f'{n}\n"{n}",\r\n' for n in range(4000)]
    for texts, block in (([3_000_000 * "x"], files._BLOCK_BYTES), (lines_in, 4096)):
        monkeypatch.setattr(files, "_BLOCK_BYTES", block)
        stream = segstore.create(tmp_path / str(block), pa.schema([("text", pa.string())]))
        stream.append(pa.table({"text": texts}))
        file = str(tmp_path / f"{block}.{ending}")
        assert main(["export", stream.url, file]) == 0
        assert main(["append", stream.url, file]) == 0
        assert stream.refresh().read().read_all()["text"].to_pylist() == 2 * texts


@pytest.mark.parametrize("form", Format)
def test_rows_survive_a_pipe(tmp_path, stream, form, monkeypatch):
    piped = io.BytesIO()
    out = SimpleNamespace(buffer=piped, isatty=lambda: False, flush=piped.flush)
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["export", stream.url, "--format", form, "-"]) == 0
    monkeypatch.undo()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(piped.getvalue())))
    assert main(["append", str(tmp_path / "copied"), "--create", "--format", form]) == 0
    found = segstore.open(tmp_path / "copied").read().read_all().to_pylist()
    assert [row["n"] for row in found] == [1, 2, 3]


def test_append_of_a_batch_again_changes_nothing(tmp_path, stream, capsys):
    file = tmp_path / "more.csv"
    file.write_text("user,n\neve,4\n")
    for repeated in (False, True):
        args = ["append", stream.url, str(file), "--writer", "etl", "--batch", "1", "--json"]
        assert main(args) == 0
        (row,) = lines(capsys)
        assert (row["start"], row["end"], row["repeated"]) == (3, 4, repeated)
    back = ["append", stream.url, str(file), "--writer", "etl", "--batch", "0"]
    assert main(back) == 2
    assert "or set --takeover once" in capsys.readouterr().err
    assert main([*back, "--takeover"]) == 0
    assert main(["append", stream.url, str(tmp_path / "rows.txt")]) == 2
    assert "give --format" in capsys.readouterr().err


def made_of(tmp_path, name, text, *more):
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    status = main(["append", str(tmp_path / "made"), str(tmp_path / name), "--create", *more])
    return segstore.open(tmp_path / "made").read().read_all() if status == 0 else None


DEEP = "["  # a million of them crashed Arrow's parser
UTC, UTC_NS = pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC")


@pytest.mark.usefixtures("tiny_blocks")
@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "1.5"], pa.float64()),
        (["null", "1"], pa.int64()),
        (["1", "9223372036854775808"], pa.decimal128(38, 0)),
        (["18446744073709551616"], pa.decimal128(20, 0)),
        (['"2026-01-02T03:04:05Z"', '"2026-01-02T03:04:05.25+02:00"'], UTC),
        (['"2026-01-02T03:04:05Z"', '"2026-01-02T03:04:05.123456789Z"'], UTC_NS),
        (['"2026-01-02"', '"2026-01-02 03:04:05"'], pa.timestamp("us")),
        (['"2026-01-02T03:04:05Z"', '"2026-01-02T03:04:05"'], pa.string()),
        (['"2026-01-02T03:04:05Z"', '"soon"'], pa.string()),
        (['{"a": 1}', '{"b": "2026-01-02T03:04:05Z"}'], pa.struct({"a": pa.int64(), "b": UTC})),
        (["[]", "[1.5]", "null"], pa.list_(pa.field("element", pa.float64()))),
    ],
)
def test_types_of_json_are_those_of_the_whole_file(tmp_path, values, kind):
    """Arrow takes those of the first block, and cuts zones and whole numbers."""
    lines = [f'{{"v": {value}}}' for value in values]
    found = made_of(tmp_path, "rows.jsonl", "\n".join([*lines[:1] * 9, *lines]))
    assert found.schema == pa.schema([("v", kind)])
    assert found["v"].null_count == ("null" in values) * (1 + 9 * (values[0] == "null"))
    if kind == pa.string():
        assert found["v"].to_pylist()[9:] == [json.loads(value) for value in values]


@pytest.mark.usefixtures("tiny_blocks")
@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "1.5", "NaN"], pa.float64()),
        (["", "1"], pa.int64()),
        (["1", "9223372036854775808"], pa.decimal128(38, 0)),
        (["9007199254740993", "1.5"], pa.string()),
        (["1.5", "1e400"], pa.string()),
        (["true", "false"], pa.bool_()),
        (["2026-01-02", "2026-01-02 03:04:05"], pa.timestamp("us")),
        (["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.25Z"], UTC),
        (["2026-01-02T03:04:05.123456789Z"], UTC_NS),
        (["2026-01-02"], pa.date32()),
        (["12:30:00", "12:30:00.000000001"], pa.time64("ns")),
        (["1", "one", "true"], pa.string()),
        ([""], pa.null()),
    ],
)
def test_types_of_csv_are_those_of_the_whole_file(tmp_path, values, kind):
    text = "".join(f"{value},x\n" for value in [*values[:1] * 9, *values])
    found = made_of(tmp_path, "rows.csv", f"v,w\n{text}")
    assert found.schema == pa.schema([("v", kind), ("w", pa.string())])
    assert len(found) == 9 + len(values)
    if kind == pa.string():
        assert found["v"].to_pylist()[9:] == values


@pytest.mark.usefixtures("tiny_blocks")
@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        ("a.jsonl", 'null\n{"n": 1}\n', "line 1: each line has to be an object"),
        ("a.jsonl", '{"n": 1}\n' * 30 + '\n{"n": "x"}\n', "line 32, field 'n': both int and str"),
        ("a.jsonl", '{"n": 1}\n{"n": "x"}\n', "line 2, field 'n': both int and str"),
        ("a.jsonl", '{"n": 1}\n' * 30 + '\n{"n": \n', "line 32: "),
        ("a.jsonl", '{"n": 9007199254740993}\n' + '{"n": 1.5}\n' * 30, "line 1, field 'n'"),
        ("a.jsonl", '[{"n": 1}]', "line 1: each line has to be an object"),
        ("a.jsonl", "", "each line has to be an object"),
        ("a.jsonl", '{"n": 1.5}\n{"n": 1e400}\n', "line 2: 1e400 is beyond"),
        ("a.jsonl", '{"n": "a"}\n{"n": "\udcff"}\n', "line 2: 'utf-8' codec"),
        ("a.jsonl", '{"n": "a"}\n{"n": "\\ud800"}\n', "line 2, field 'n': 'utf-8' codec"),
        ("a.jsonl", '{"n": [1]}\n{"n": ["x"]}\n', "line 2, field 'n': "),
        ("a.jsonl", '{"n": [1]}\n{"n": [9223372036854775808]}\n', "line 2, field 'n': "),
        ("a.jsonl", '{"n": 1}\n{"n": %s}\n' % ("9" * 39), "line 2, field 'n': "),
        ("a.jsonl", f'{{"n": [1]}}\n{{"n": {DEEP * 10**6}{"]" * 10**6}}}', "line 2: "),
        ("a.jsonl", f'{{"n": {DEEP * 900}{"]" * 900}}}', "recursion depth"),
        ("a.csv", "n,m\n" + "1,2\n" * 30 + "1,2,3\n", "Row #32"),
    ],
)
def test_a_file_that_fails_leaves_no_new_stream(tmp_path, name, text, where, capsys):
    assert made_of(tmp_path, name, text) is None
    assert where in capsys.readouterr().err
    assert not segstore.exists(tmp_path / "made")


def test_decimals_of_json_keep_their_digits(tmp_path):
    """Also where Arrow's parser does not read the lines, as after a blank."""
    stream = segstore.create(tmp_path / "s", pa.schema({"n": pa.decimal128(38, 30)}))
    digits = "0.123456789012345678901234567890"
    (tmp_path / "a.jsonl").write_text(f' {{"n": {digits}}}\n{{"n": 1e-30}}\n')
    assert main(["append", stream.url, str(tmp_path / "a.jsonl")]) == 0
    found = stream.refresh().read().read_all()["n"].to_pylist()
    assert found == [decimal.Decimal(digits), decimal.Decimal("1e-30")]


def test_an_empty_file_of_json_has_no_events(tmp_path, stream):
    """As the export of an empty stream."""
    (tmp_path / "a.jsonl").write_text("\n")
    for more in ([], ["--merge-schema"], ["--create"]):
        assert main(["append", stream.url, str(tmp_path / "a.jsonl"), *more]) == 0
    assert stream.refresh().tail == 3


@pytest.mark.parametrize(("ending", "text"), [("csv", "n\n1\n"), ("jsonl", '{"n": 1}\n')])
def test_a_named_pipe_makes_a_stream(tmp_path, ending, text):
    pipe = tmp_path / f"pipe.{ending}"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(text,))
    writer.start()
    assert main(["append", str(tmp_path / "made"), str(pipe), "--create"]) == 0
    writer.join()
    assert segstore.open(tmp_path / "made").read().read_all().to_pylist() == [{"n": 1}]


def test_a_new_stream_that_others_have_stays(tmp_path, monkeypatch):
    """Only what nothing was committed to is dropped after a failure."""
    events, failing = EVENTS.to_batches()[0], []

    def rows(*, others):
        yield events
        if others:
            segstore.open(tmp_path / "made").append(EVENTS)
        raise pa.ArrowInvalid("cut short")

    for others in (False, True):
        reader = pa.RecordBatchReader.from_batches(EVENTS.schema, rows(others=others))
        monkeypatch.setattr(files, "_open_arrow", lambda _, reader=reader: reader)
        failing.append(made_of(tmp_path, "rows.arrow", "") is None)
        assert segstore.exists(tmp_path / "made") == others
    assert failing == [True, True]


def test_new_columns_of_later_lines_are_merged(tmp_path, stream):
    (tmp_path / "more.jsonl").write_text(
        '{"user": "eve", "n": 4}\n{"when": "2026-01-02T03:04:05Z"}\n'
    )
    assert main(["append", stream.url, str(tmp_path / "more.jsonl"), "--merge-schema"]) == 0
    assert stream.refresh().schema.field("when").type == UTC
    assert stream.tail == 5


def test_new_fields_beside_times_are_merged(tmp_path):
    """And times in structs and lists are those of the stream."""
    kind = pa.struct({"at": UTC, "days": pa.list_(pa.date32())})
    stream = segstore.create(tmp_path / "s", pa.schema({"v": kind}))
    value = '{"at": "2026-01-02T03:04:05Z", "days": ["2026-01-02"]%s}'
    texts = ['{"v": %s}' % (value % more) for more in ("", ', "late": 1')]
    (tmp_path / "a.jsonl").write_text("".join(f"{text}\n" for text in texts))
    assert main(["append", stream.url, str(tmp_path / "a.jsonl"), "--merge-schema"]) == 0
    at, days = WHEN.replace(microsecond=0), [WHEN.date()]
    assert stream.refresh().read().read_all()["v"].to_pylist() == [
        {"at": at, "days": days, "late": late} for late in (None, 1)
    ]


@pytest.mark.parametrize("column", [MANY["list"], TYPED["map"], TYPED["far"], TYPED["far_days"]])
def test_what_csv_can_t_hold_is_named(tmp_path, column, capsys):
    events = pa.table({"c": column})
    segstore.create(tmp_path / "s", events.schema).append(events)
    assert main(["export", str(tmp_path / "s"), str(tmp_path / "rows.csv")]) == 2
    said = capsys.readouterr().err
    assert "SEG_INVALID_INPUT: CSV has no" in said
    assert "'c'" in said
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


@pytest.mark.usefixtures("tiny_blocks")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bad.csv", "user,n\neve,4,5\n"),
        ("kind.csv", "user,n\neve,four\n"),
        ("late.csv", "user,n\n" + "eve,4\n" * 300 + "eve,4,5\n"),
        ("empty.csv", ""),
        ("bad.jsonl", '{"n": }\n'),
        ("bad.parquet", "rows"),
        ("bad.arrow", "rows"),
    ],
)
def test_file_that_can_t_be_read_is_named(tmp_path, stream, name, text, capsys):
    file = tmp_path / name
    file.write_text(text)
    assert main(["append", stream.url, str(file)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"segstore: SEG_INVALID_INPUT: file can't be read: file='{file}'")
    assert name != "kind.csv" or "column 'n': Row #2: CSV conversion error" in said
    assert segstore.open(stream.url).tail == 3


def test_export_that_fails_leaves_the_old_file(tmp_path, capsys):
    events = pa.table({"list": [[1]]})
    segstore.create(tmp_path / "lists", events.schema).append(events)
    file = tmp_path / "rows.csv"
    file.write_text("old")
    assert main(["export", str(tmp_path / "lists"), str(file), "--force"]) == 2
    assert (file.read_text(), len([*tmp_path.iterdir()])) == ("old", 2)
    assert capsys.readouterr().err.startswith("segstore: ")


def test_events_of_an_interval_are_chosen_by_their_time(tmp_path, capsys):
    url, file = str(tmp_path / "timed"), str(tmp_path / "out.json")
    columns = ["--column", "day:date32", "--column", "n:int64"]
    assert main(["create", url, *columns, "--time-column", "day", "--json"]) == 0
    days = [dt.date(2026, 11, day) for day in (20, 22, 21)]
    segstore.open(url).append(pa.table({"day": days, "n": [1, 2, 3]}))
    capsys.readouterr()
    chosen = ["-c", "n", "--json", "--event-time"]
    for interval, expected in (
        ("2026-11-21..2026-11-22", [3]),
        ("2026-11-21..", [2, 3]),
        ("..2026-11-22", [1, 3]),
        ("2026-11-22..2026-11-23", [2]),
    ):
        assert main(["cat", url, *chosen, interval]) == 0
        assert [line["n"] for line in lines(capsys)] == expected
    assert main(["export", url, file, *chosen, "2026-11-22.."]) == 0
    assert json.loads((tmp_path / "out.json").read_text())["n"] == 2
    assert main(["cat", url, *chosen, "2026-11-22"]) == 2
    assert "START..END" in capsys.readouterr().err


@pytest.mark.usefixtures("no_inline")
@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_pipe_of_an_export_that_fails_is_not_ended(tmp_path, form, monkeypatch, capsys):
    """Whoever reads it must not take the part for all of it."""
    stream = segstore.create(tmp_path / "clicks", EVENTS.schema, upkeep=None)
    for _ in range(2):
        stream.append(EVENTS)
    damaged = max((tmp_path / "clicks").rglob("*.arrow"))
    data = bytearray(damaged.read_bytes())
    data[200] ^= 1
    damaged.write_bytes(data)
    piped = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=piped, isatty=lambda: False))
    assert main(["export", stream.url, "--format", form, "-"]) == 2
    monkeypatch.undo()
    gc.collect()
    end = {"parquet": b"\0PAR1", "arrow": b"\xff\xff\xff\xff\0\0\0\0"}[form]
    assert piped.getvalue()
    assert not piped.getvalue().endswith(end)
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        (pa.float64(), b"9007199254740993", "line 4, field 'n': not exact as double"),
        (pa.float64(), b"1e400", "line 4, field 'n': not exact as double"),
        (pa.float64(), b"one", "line 4, field 'n': Failed to parse string: 'one'"),
        (pa.float32(), b"16777217", "line 4, field 'n': not exact as float"),
        (pa.float32(), b"1e39", "line 4, field 'n': not exact as float"),
        (pa.binary(), b"@@", "line 4, field 'n': Only base64"),
        (pa.string(), b"\xff", "column 'n': Row #4"),
        (pa.list_(pa.int64()), b"1", "list<element: int64> is not supported"),
        (pa.struct({"a": pa.int64()}), b"1", "struct<a: int64> is not supported"),
    ],
)
def test_values_of_csv_that_do_not_fit_are_named(tmp_path, kind, text, why, capsys):
    """And never stored as another number."""
    stream = segstore.create(tmp_path / "s", pa.schema({"n": kind, "m": pa.int64()}))
    (tmp_path / "a.csv").write_bytes(b"n,m\n,1\n,2\n" + text + b",3\n")
    assert main(["append", stream.url, str(tmp_path / "a.csv")]) == 2
    said = capsys.readouterr().err
    assert "SEG_INVALID_INPUT: file can't be read" in said
    assert why in said
    assert stream.refresh().tail == 0


def test_a_file_that_is_read_again_is_read_from_its_begin(tmp_path):
    """Though Arrow's first reader still reads ahead."""
    (tmp_path / "a.csv").write_bytes(b"n\n1\n2\n")
    with (tmp_path / "a.csv").open("rb") as source:
        first = files._WholeEnds(source)
        assert first.read(2) == b"n\n"
        source.seek(0)
        again = files._WholeEnds(source)
        assert [first.read(2), again.read(4)] == [b"1\n", b"n\n1\n"]


def test_a_header_that_is_not_utf_8_is_an_error(tmp_path, capsys):
    (tmp_path / "a.csv").write_bytes(b"\xff\n1\n")
    assert main(["append", str(tmp_path / "s"), str(tmp_path / "a.csv"), "--create"]) == 2
    assert "SEG_INVALID_INPUT: file can't be read" in capsys.readouterr().err


def test_fields_of_structs_are_never_left_out(tmp_path, capsys):
    """Also where Arrow's parser does not read the lines, as after a blank."""
    kinds = {"v": pa.struct({"a": pa.int64()}), "m": pa.map_(pa.string(), pa.int64())}
    stream = segstore.create(tmp_path / "s", pa.schema(kinds))
    for text, why in (('{"v": {"a": 1, "late": 2}, "m": []}', "late"), ('{"m": ""}', "field 'm'")):
        for blank in ("", " "):
            (tmp_path / "a.jsonl").write_text(f"{blank}{text}\n")
            assert main(["append", stream.url, str(tmp_path / "a.jsonl")]) == 2
            assert why in capsys.readouterr().err
    assert stream.refresh().tail == 0


def test_bytes_that_are_not_base64_are_named(tmp_path, capsys):
    stream = segstore.create(tmp_path / "s", pa.schema({"raw": pa.binary()}))
    file = tmp_path / "rows.jsonl"
    file.write_text('{"raw": "a"}\n')
    assert main(["append", stream.url, str(file)]) == 2
    assert f"file='{file}'" in capsys.readouterr().err
