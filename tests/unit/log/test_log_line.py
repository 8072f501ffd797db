"""The line that each commit logs."""

import json
import logging
import re

import pyarrow as pa

import segstore_ds as segstore


def test_each_commit_logs_one_line_that_parses(tmp_path, caplog):
    stream = segstore.create(tmp_path / "s p", pa.schema([("n", pa.int64())]), upkeep=None)
    with caplog.at_level(logging.DEBUG, "segstore_ds"):
        stream.append(pa.table({"n": [1, 2]}), writer_id='a "b"\n=c', batch_id=3)
        stream.append(pa.table({"n": [1, 2]}), writer_id='a "b"\n=c', batch_id=3)  # no commit
    (record,) = [one for one in caplog.records if one.name == "segstore_ds.log.commit"]
    text = record.getMessage()
    assert text.startswith("commit url=")
    assert "\n" not in text
    pairs = re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|-?[\d.]+)(?: |$)', text)
    fields = {name: json.loads(value) for name, value in pairs}
    assert fields == record.segstore
    (row,) = stream.history(1).read_all().to_pylist()
    assert (row.pop("start"), row.pop("end")) == (0, 2)
    row["time_us"] = int(row.pop("time").timestamp() * 1e6)
    shown = {name: value for name, value in row.items() if value not in (None, "")}
    assert fields == {"url": stream.url, **shown}


def test_each_lost_race_logs_the_commit_that_won(tmp_path, caplog):
    first = segstore.create(tmp_path / "s", pa.schema([("n", pa.int64())]), upkeep=None)
    second = segstore.open(first.url)
    first.append(pa.table({"n": [1]}), writer_id="winner", batch_id=1)
    with caplog.at_level(logging.DEBUG, "segstore_ds"):
        second.append(pa.table({"n": [2]}))
    lost, won = (one for one in caplog.records if one.name == "segstore_ds.log.commit")
    assert lost.getMessage().startswith("lost a race to url=")
    (row,) = first.history(1, 2).read_all().to_pylist()
    for name in ("version", "operation", "writer_id", "client", "transaction"):
        assert lost.segstore[name] == row[name]
    assert (won.segstore["version"], won.segstore["races_lost"]) == (2, 1)


def test_commits_log_nothing_at_info(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "segstore_ds"):
        stream = segstore.create(tmp_path / "s", pa.schema([("n", pa.int64())]), upkeep=None)
        stream.append(pa.table({"n": [1, 2]}))
        stream.compact()
        list(stream.read())
    assert not caplog.messages
