"""A scan is a value: bound to a version, read as often as it is asked, in any library's form."""

import pickle
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import segstore_ds as segstore
from segstore_ds.errors import FormatError, InvalidInputError, TruncatedError
from segstore_ds.stream import scan as scan_module

ROWS = [{"n": n, "user": "ada" if n % 3 == 0 else "bob", "ok": n % 2 == 0} for n in range(300)]


@pytest.fixture
def stream(tmp_path):
    made = segstore.create(tmp_path / "s", pa.Table.from_pylist(ROWS).schema, upkeep=None)
    for form, start in (("arrow", 0), ("parquet", 100), ("arrow", 200)):
        rows = ROWS[start : start + 100]
        made.append(rows, layout=segstore.Layout(segment_format=form, inline_bytes=0))
    return made


def numbers(found):
    return pa.table(found)["n"].to_pylist()


def test_a_scan_stays_at_its_version_and_reads_again(stream):
    scan = stream.scan(290)
    stream.append([{"n": 300, "user": "eve", "ok": None}])
    assert numbers(scan) == numbers(scan) == [*range(290, 300)]
    assert numbers(stream.scan(290)) == [*range(290, 301)]
    assert numbers(stream.scan(as_of=3)) == [*range(300)]
    copied = pickle.loads(pickle.dumps(scan))  # noqa: S301 - of this test
    assert numbers(copied) == [*range(290, 300)]
    assert repr(copied) == repr(scan)


def test_all_forms_of_a_scan_agree(stream):
    scan = stream.scan(50, 250, columns=["n", "user"], filters="n < 240 and user == 'ada'")
    wanted = [n for n in range(50, 240) if n % 3 == 0]
    assert numbers(scan) == numbers(scan.to_reader()) == numbers(scan.to_arrow()) == wanted
    assert scan.to_pandas()["n"].tolist() == wanted
    assert scan.to_polars().collect()["n"].to_list() == wanted
    assert pl.DataFrame(scan)["n"].to_list() == wanted
    assert [row[0] for row in scan.to_duckdb().fetchall()] == wanted
    assert duckdb.sql("SELECT n FROM scan ORDER BY n").fetchall() == [(n,) for n in wanted]
    assert numbers(scan.to_dataset().to_table()) == wanted
    assert [n for batch in scan for n in batch["n"].to_pylist()] == wanted
    assert scan.count() == len(wanted)
    assert scan.schema.names == ["n", "user"]


def test_a_library_adds_its_own_filter_to_that_of_the_scan(stream):
    scan = stream.scan(filters=pc.field("n") > 280)
    frame = scan.to_polars().filter(pl.col("user") == "ada")
    assert frame.collect()["n"].to_list() == [282, 285, 288, 291, 294, 297]
    found = scan.to_dataset().to_table(filter=pc.field("n") < 283)
    assert numbers(found) == [281, 282]
    with duckdb.connect() as connection:
        relation = stream.scan(limit=3).to_duckdb(connection)
        # A relation may be asked again.
        assert [relation.sum("n").fetchall()[0][0] for _ in range(2)] == [3, 3]


def test_a_limit_holds_in_every_form(stream):
    for filters, first in ((None, [0, 1, 2]), ("user == 'ada'", [0, 3, 6])):
        scan = stream.scan(filters=filters, limit=3)
        assert numbers(scan) == scan.to_polars().collect()["n"].to_list() == first
        assert scan.count() == 3
        assert (
            numbers(scan.to_polars().filter(pl.col("n") > 2).collect())
            == first[first[1] // 3 :][-sum(n > 2 for n in first) or len(first) :]
        )
    assert numbers(stream.scan(limit=3).to_dataset().to_table()) == [0, 1, 2]
    for ask in (scan.to_dataset, scan.tasks):
        with pytest.raises(InvalidInputError, match="can't be divided"):
            ask()


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_no_task_is_empty_however_few_events_it_should_have(tmp_path, form):
    """A frame is read by one task, unless tasks are to have less than half of its events."""
    made = segstore.create(tmp_path / "frames", like={"n": 0}, upkeep=None)
    layout = segstore.Layout(inline_bytes=0, frame_rows=7, segment_format=form)
    made.append(pa.table({"n": range(40)}), layout=layout)
    made.append(pa.table({"n": range(40, 63)}), layout=layout)
    for start, end in ((0, 63), (5, 63), (20, 41), (13, 15), (3, 36)):
        for rows in (1, 2, 5, 8, 50):
            parts = [
                [n for batch in task for n in batch["n"].to_pylist()]
                for task in made.scan(start, end).tasks(partition_rows=rows)
            ]
            assert all(parts), (start, end, rows)
            assert [n for part in parts for n in part] == [*range(start, end)]
    assert [len(made.scan().tasks(partition_rows=rows)) for rows in (1, 3, 4)] == [63, 22, 10]
    assert len(made.scan().tasks(40)) == 6 + 4
    for task in made.scan(2, 60).tasks(5):
        found = task.to_reader().read_all()["n"].to_pylist()
        assert task.start <= found[0] <= found[-1] < task.end
    tasks = made.scan(5).tasks(partition_rows=2)
    assert [task.to_reader().read_all().num_rows for task in tasks] == [
        task.end - task.start for task in tasks
    ]


def test_tasks_are_sent_to_who_reads_them(stream):
    tasks = pickle.loads(pickle.dumps(stream.scan(filters="user == 'ada'").tasks(3)))  # noqa: S301
    assert len(tasks) == 3
    assert tasks[0].schema.names == ["n", "user", "ok"]
    found = [n for task in tasks for batch in task for n in batch["n"].to_pylist()]
    assert found == [row["n"] for row in ROWS if row["user"] == "ada"]


def test_a_sample_is_of_the_scan_and_the_same_for_a_seed(stream, monkeypatch):
    """Each event as likely, none twice, in order; with cuts, filters, columns and offsets."""
    monkeypatch.setattr(scan_module, "_NEAR_ROWS", 3)
    whole = stream.scan(20, 150, columns=["n"], offset_column="o")
    for n in (0, 1, 7, 130, 1000):
        found = whole.sample(n, seed=5)
        assert found == whole.sample(n, seed=5)
        offsets = found["o"].to_pylist()
        assert len(offsets) == min(n, 130)
        assert offsets == sorted({*offsets} & {*range(20, 150)})
        assert found["n"].to_pylist() == [ROWS[offset]["n"] for offset in offsets]
    filtered = stream.scan(filters="user == 'ada'", columns=["user", "n"])
    found = filtered.sample(9, seed=1)
    assert {*found["user"].to_pylist()} == {"ada"}
    assert found.num_rows == 9
    assert filtered.sample(10_000) == filtered.to_arrow().combine_chunks()
    seen = {
        n for seed in range(60) for n in stream.scan(0, 8).sample(2, seed=seed)["n"].to_pylist()
    }
    assert seen == {row["n"] for row in ROWS[:8]}
    with pytest.raises(InvalidInputError, match="limit"):
        stream.scan(filters="n > 1", limit=3).sample(1)


def test_files_are_of_whole_events(stream):
    with pytest.raises(InvalidInputError, match="a filter leaves out"):
        stream.scan(filters="n > 3").files(partial=True)


def test_a_stream_is_what_arrow_and_polars_take(stream):
    assert len(stream) == stream.scan().count() == 300
    assert numbers(stream) == [*range(300)]
    assert pl.DataFrame(stream).height == 300
    assert duckdb.sql("SELECT sum(n) FROM stream").fetchall() == [(sum(range(300)),)]
    assert sum(batch.num_rows for batch in stream) == 300
    assert numbers(stream[100:200]) == [*range(100, 200)]
    assert numbers(stream[-10:]) == [*range(290, 300)]
    assert numbers(stream[:-295]) == [*range(5)]
    assert numbers(stream[np.int64(-2) : 1000]) == [298, 299]
    assert not numbers(stream[200:100])
    assert not numbers(stream[400:])
    for wrong in (5, slice(0, 10, 2), "n"):
        with pytest.raises(InvalidInputError, match="not a range of offsets"):
            stream[wrong]
    empty = segstore.create(f"{stream.url}-empty", stream.schema)
    assert empty
    assert len(empty) == 0


def test_a_slice_is_of_kept_events(stream):
    """As of a list, but that an offset below the head is an error: there were events."""
    stream.truncate(10)
    assert numbers(stream[-400:12]) == numbers(stream[:12]) == [10, 11]
    assert not numbers(stream[:5])
    with pytest.raises(TruncatedError):
        stream[5:12]


def test_threads_share_a_scan(stream):
    scan = stream.scan()
    with ThreadPoolExecutor(8) as threads:
        found = [*threads.map(lambda _: numbers(scan), range(8))]
    assert found == [[*range(300)]] * 8


def test_filters_as_a_text(stream):
    """What a text may say, and what it means, is in `tests/unit/read/test_filter_texts.py`."""
    for text, wanted in (
        ("not (n >= 2 or n < 1)", [1]),
        ("n in (1, 2, 400) AND user != 'ada'", [1, 2]),
        ("user.startswith('a') and n < 7 and ok", [0, 6]),
        ("(n == 1 or n == 2) and (ok == true or n == 9)", [2]),
        ("3 > n > 0", [1, 2]),
        ('[["n", "==", 5]]', [5]),
    ):
        assert numbers(stream.scan(filters=text)) == wanted, text
    for text in ("n > m", "f(n)", "__import__('os').system('true')", '["n", "==", 5]'):
        with pytest.raises(InvalidInputError):
            stream.scan(filters=text)


@pytest.mark.parametrize("name", ["pandas", "polars", "duckdb"])
def test_a_library_that_is_missing_is_named(stream, name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidInputError, match=f"{name} is not installed.*pip install {name}"):
        getattr(stream.scan(), f"to_{name}")()


def test_times_that_pandas_lacks_are_an_error_of_ours():
    events = pa.table({"t": pa.array([1], pa.time64("ns")), "n": [1]})
    stream = segstore.create(f"memory://{uuid.uuid4().hex}", events.schema)
    stream.append(events)
    with pytest.raises(InvalidInputError, match=r"pandas can't hold.*types_mapper"):
        stream.scan().to_pandas()
    found = stream.scan().to_pandas(types_mapper=pd.ArrowDtype)
    assert pa.array(found["t"]).equals(events["t"].combine_chunks())


def test_damage_of_a_scan_that_is_appended_has_its_type(stream, tmp_path):
    """Arrow's C stream would make an `ArrowInvalid` of it."""
    segment = tmp_path / "s/segments" / stream._log.root.entries[0].path
    data = bytearray(segment.read_bytes())
    data[200] ^= 1
    segment.write_bytes(data)
    other = segstore.create(tmp_path / "o", stream.schema)
    appender = other.appender()
    for take in (other.append, other.overwrite, appender.append):
        for given in (stream, stream.scan(read_cache_bytes=0)):
            with pytest.raises(FormatError, match="checksum"):
                take(given)
    with pytest.raises(pa.ArrowInvalid, match=r"SEG_CORRUPTION.*checksum"):
        pa.table(stream)
    appender.close()
    assert other.tail == 0


def test_a_cut_after_another_bounds_bytes_and_events():
    made = segstore.create("memory://cut-after", like={"n": 1}, upkeep=None)
    layout = segstore.Layout(inline_bytes=0, segment_format="arrow")
    for start in (0, 1000, 2000):
        made.append(pa.table({"n": range(start, start + 1000)}), layout=layout)
    sizes = pa.table(made.segments())["bytes"].to_pylist()
    assert made.cut_after(max_bytes=sizes[0]) == 1000
    assert made.cut_after(500, max_bytes=sizes[0] // 2) == 1000
    assert made.cut_after(0, max_bytes=sum(sizes) - 1) == 2999
    assert made.cut_after(0, max_bytes=1) == 1
    assert made.cut_after("head", max_bytes="1g", max_rows=1700) == 1700
    assert made.cut_after(2999) == made.cut_after("tail", max_rows=1) == 3000
    made.truncate(10)
    for wrong, told in (((9,), "TRUNCATED"), ((3001,), "beyond the tail")):
        with pytest.raises(segstore.SegstoreError, match=told):
            made.cut_after(*wrong, max_rows=1)
    for limit in ({"max_rows": 0}, {"max_bytes": 0}, {"max_bytes": "0m"}):
        with pytest.raises(InvalidInputError, match="at least 1"):
            made.cut_after(**limit)
