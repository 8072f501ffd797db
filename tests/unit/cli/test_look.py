"""The commands that look, for people and for programs."""

import datetime as dt
import json
import webbrowser
from pathlib import Path

import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.cli import DAMAGED, FAILED
from segstore_ds.cli.main import main
from segstore_ds.status.writers import WriterKey

RULES = {"format", "tables", "redaction", "replication", "readers"}
EVENTS = pa.table({"user": ["ada", "b\x1b[31m", None], "n": [1, 2, 3]})


@pytest.fixture
def stream(tmp_path):
    made = segstore.create(tmp_path / "clicks", EVENTS.schema)
    made.append(EVENTS, writer_id="etl", batch_id=7)
    return made


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.usefixtures("stream")
def test_ls_lists_streams_and_says_which_does_not_open(tmp_path, capsys):
    segstore.create(tmp_path / "views", EVENTS.schema)
    assert main(["ls", str(tmp_path)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [row.split()[:5] for row in shown[1:]] == [
        ["clicks", "3", "0", "3", "1"],
        ["views", "0", "0", "0", "0"],
    ]
    (tmp_path / "views/log/00000000000000000000").write_bytes(b"v1 no commit")
    assert main(["ls", str(tmp_path), "--json"]) == DAMAGED
    first, second = lines(capsys)
    assert (first["events"], first["error"]) == (3, None)
    assert second["code"].startswith("SEG_")
    assert "segstore repair URL fixes what it can" in second["error"]


def test_info_for_programs_has_the_numbers_and_the_columns(stream, capsys):
    assert main(["info", stream.url, "--json"]) == 0
    (row,) = lines(capsys)
    assert (row["events"], row["columns"]) == (3, {"user": "string", "n": "int64"})
    assert row["time"].endswith("Z")


def test_info_names_writers_and_their_queries(stream, capsys):
    key = WriterKey("4fc1", 2)
    job = stream.plan_write(EVENTS.schema, writer=key, client="pyspark/4 query/etl app/a")
    stream.commit(job, [job.open_task(0, "0").finish()])
    assert main(["info", stream.url]) == 0
    shown = capsys.readouterr().out
    assert "writers   4fc1 of query etl (batch 2), etl (batch 7)\n" in shown


def test_history_shows_the_newest_commits(stream, capsys):
    stream.append(EVENTS)
    assert main(["history", stream.url, "-n", "2", "--json"]) == 0
    assert [row["version"] for row in lines(capsys)] == [1, 2]
    assert main(["history", stream.url]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown] == ["version", "0", "1", "2"]


def test_history_leaves_out_what_only_names_a_reader(stream, capsys):
    for name in ("a", "b", "c"):
        stream.readers.register(name, owner="a")
    for options, versions in (
        (["-n", "1"], [1]),
        ([], [0, 1]),
        (["-n", "0"], [0, 1]),
        (["-n", "2", "--all"], [3, 4]),
    ):
        assert main(["history", stream.url, "--json", *options]) == 0
        assert [row["version"] for row in lines(capsys)] == versions


def test_history_is_asked_by_time_operation_and_client(stream, capsys):
    stream.append(EVENTS)
    stream.tags.set("eod", "tail")
    stream.readers.register("a", owner="a")
    last = stream.history().read_all()["time"][3].as_py().isoformat()
    for options, versions in (
        (["--operation", "tag", "--operation", "reader"], [3, 4]),
        (["--until", last], [0, 1, 2]),
        (["--since", last, "--client", "segstore/"], [3]),
        (["--client", "nobody", "-n", "0"], []),
    ):
        assert main(["history", stream.url, "--json", *options]) == 0
        assert [row["version"] for row in lines(capsys)] == versions
    assert main(["history", stream.url, "--since", "yesterday"]) == 2
    assert "not a time" in capsys.readouterr().err


def test_members_of_a_reader_are_shown_with_their_lag(stream, capsys):
    follow = stream.follow("billing", member="w1", lease="9s")
    next(follow)
    assert main(["readers", stream.url]) == 0
    *_, header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["reader", "member", "start", "end", "behind", "lease_s"]
    assert row.split() == ["billing", "w1", "0", "3", "9"]  # its end is open
    assert main(["readers", stream.url, "--json"]) == 0
    (only,) = lines(capsys)
    assert [each["behind"] for each in only["members"]] == [3]
    assert main(["metrics", stream.url]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["member_lag_events", "billing/w1", "3", "event"] in shown
    follow.close()
    assert main(["readers", stream.url]) == 0
    assert "w1" not in capsys.readouterr().out


def test_info_names_key_and_time_columns_and_ids_are_no_quantities(tmp_path, capsys):
    like = {"order_id": 12345, "n": 12345, "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}
    made = segstore.create(tmp_path / "s", like=like, key_columns=["order_id"], time_column="at")
    made.append([like])
    assert main(["info", made.url]) == 0
    printed = capsys.readouterr().out
    assert "\nkeys      order_id\ntime      at\n" in printed
    assert main(["info", made.url, "--json"]) == 0
    (row,) = lines(capsys)
    assert (row["key_columns"], row["time_column"]) == (["order_id"], "at")
    assert main(["cat", made.url]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["12345", "12,345"]


def test_segments_readers_and_tags_are_tables(stream, capsys):
    stream.readers.register("billing", owner="a", start=1)
    stream.tags.set("monday", 2)
    assert main(["info", stream.url, "--segments"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:4] == ["0", "0", "3", "3"]
    assert main(["readers", stream.url, "--json"]) == 0
    (row,) = lines(capsys)
    assert (row["name"], row["behind"], row["live"]) == ("billing", 2, True)
    assert main(["tag", stream.url]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["monday", "2"]


def test_metrics_are_in_prometheus_text(stream, capsys):
    stream.readers.register("billing", owner="a", start=1)
    stream.readers.register("old", owner="a").release()
    assert main(["metrics", stream.url, "--prometheus", "--storage"]) == 0
    printed = capsys.readouterr().out
    label = f'stream="{stream.url}"'
    assert f"\nsegstore_events{{{label}}} 3.0\n" in printed
    assert "# TYPE segstore_reader_lag_events gauge" in printed
    assert f'segstore_reader_lag_events{{reader="billing",{label}}} 2.0' in printed
    assert 'reader="old"' not in printed
    assert f'segstore_storage_objects{{{label},why="commits"}}' in printed


def test_a_stream_that_can_not_be_measured_is_down_for_prometheus(stream, capsys):
    segstore.drop(stream.url, confirm=stream.url)
    assert main(["metrics", stream.url, "--prometheus"]) == 2
    printed = capsys.readouterr()
    assert f'\nsegstore_up{{stream="{stream.url}"}} 0.0\n' in printed.out
    assert "SEG_NOT_FOUND" in printed.err


def test_metrics_are_a_table_or_one_line_of_json(stream, capsys):
    stream.readers.register("billing", owner="a", start=1)
    assert main(["metrics", stream.url]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["metric", "of", "value", "unit"]
    assert ["events", "3", "event"] in rows
    assert ["reader_lag_events", "billing", "2", "event"] in rows
    assert main(["metrics", stream.url, "--json"]) == 0
    (row,) = lines(capsys)
    assert (row["events"], row["readers"][0]["lag"]["events"]) == (3, 2)
    assert row["last_commit"].endswith("Z")
    assert row["storage"] is None


def test_docs_lists_pages_and_prints_one(capsys):
    assert main(["docs", "--json"]) == 0
    pages = {row["page"]: row["title"] for row in lines(capsys)}
    folder = Path(segstore.__file__).parent / "docs"
    assert {*pages} == {page.stem for page in folder.glob("*.md")} | {"design", "source"} | RULES
    assert (pages["glossary"], pages["command_line"]) == ("Glossary", "Command line")
    assert main(["docs", "glossary"]) == 0
    assert capsys.readouterr().out.startswith("# Glossary")
    assert main(["docs", "qwertyuiop"]) == 2


def test_docs_has_the_reference_with_docstrings(capsys):
    assert main(["docs", "reference"]) == 0
    text = capsys.readouterr().out
    assert "\n:::" not in text
    for name in ("create", "Stream.append", "spark.write", "SegstoreError"):
        assert f"\n### {name}\n" in text
    assert "Append events: all of them in one commit, or none." in text


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("GDPR", "maintenance"),
        ("describe history", "kafka"),
        ("reset offsets", "kafka"),
        ("consumer group", "kafka"),
        ("time travel", "kafka"),
        ("web service", "python"),
    ],
)
def test_docs_finds_what_people_of_other_systems_call_it(words, page, capsys):
    for line in ([words], words.split()):
        assert main(["docs", *line, "--json"]) == 0
        assert page in [row["page"] for row in lines(capsys)]


def test_docs_shows_what_to_do_about_an_error(capsys):
    assert main(["docs", "SEG_CONFLICT"]) == 0
    entry = capsys.readouterr().out
    assert entry.startswith("### SEG_CONFLICT\n")
    assert "- **Do**: " in entry
    assert "SEG_WRITER_CONFLICT" not in entry
    assert main(["docs", "SEG_NOTHING"]) == 2


def test_show_writes_a_page_and_says_where(stream, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["show", stream.url]) == 0
    page = (tmp_path / "clicks.segstore.html").read_text()
    assert capsys.readouterr().out.startswith(str(tmp_path / "clicks.segstore.html"))
    assert "<h2>What holds storage</h2>" in page
    assert main(["show", stream.url, "-o", "b.html", "--no-storage", "--json"]) == 0
    (row,) = lines(capsys)
    page = (tmp_path / "b.html").read_text()
    assert row == {"url": stream.url, "file": str(tmp_path / "b.html"), "bytes": len(page.encode())}
    assert "<h2>What holds storage</h2>" not in page
    assert main(["show", stream.url, "-o", "-"]) == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")
    assert main(["show", stream.url, "-o", "-", "--open"]) == FAILED


def test_show_opens_the_page_in_the_browser(stream, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda url: bool(opened.append(url)) or len(opened) < 2)
    line = ["show", stream.url, "-o", str(tmp_path / "p.html"), "--open"]
    assert main(line) == 0
    assert opened == [(tmp_path / "p.html").as_uri()]
    assert main(line) == FAILED  # there is no browser
