"""What commands print can't steer a terminal, and CSV cells can't run in a spreadsheet."""

import csv
import io
import json
import logging
import os
import pty
import re
import sys
import unicodedata

import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.cli.main import main

# Colours, a C1 sequence, a title, a deleted character, a forged line, and marks of direction.
HOSTILE = "a\x1b[31m\x9b2J\x1b]0;t\x07\x7f\r\nsealed yes \u202eb\u2066c\u2028\u061c\U000e0041"
BIDI = "\u202egpj"
FORMULAS = ["=1+1", "+1+1", "-1+1", "@SUM(1)", "\t=1", "\r=1", "\n=1", "\uff1d1", '=cmd|"/c x"!A0']
HARMLESS = ["", "ada", "-5", "+3.25", "-1e9", "a=1", " =1", "'=1", None]


def unsafe(text):
    """Return the control characters and marks in a text, line ends aside."""
    return sorted({c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Zl")})


@pytest.fixture
def stream(tmp_path):
    """A stream whose values, column names and folder hold what steers terminals."""
    table = pa.table({HOSTILE: [HOSTILE, "b"], "list": [[HOSTILE], None]})
    made = segstore.create(tmp_path / f"clicks{BIDI}", table.schema)
    made.append(table)
    return made


@pytest.fixture
def terminal(monkeypatch):
    """Run a command on a terminal and return its status and what the terminal got."""

    def run(*line):
        outer, inner = pty.openpty()
        with os.fdopen(inner, "w", encoding="utf-8") as shown, monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", shown)
            status = main([*line])
            shown.flush()
            got = b""
            os.set_blocking(outer, False)
            try:
                while piece := os.read(outer, 65536):
                    got += piece
            except BlockingIOError:
                pass
        os.close(outer)
        return status, got.decode().replace("\r\n", "\n")

    return run


LOOKS = [
    ["cat"],
    ["cat", "-n", "1"],
    ["cat", "-n", "-1"],
    ["info"],
    ["history"],
    ["info", "--segments"],
    ["readers"],
    ["followers"],
    ["tag"],
    ["metrics"],
    ["verify"],
]


@pytest.mark.parametrize("command", [*LOOKS, *([*look, "--json"] for look in LOOKS)], ids=" ".join)
def test_what_commands_print_holds_no_control_characters(stream, command, capsys):
    assert main([command[0], stream.url, *command[1:]]) == 0
    printed = capsys.readouterr()
    assert unsafe(printed.out + printed.err) == []


def test_a_name_forges_no_line(stream, capsys):
    assert main(["info", stream.url]) == 0
    assert "sealed" not in [line.split()[0] for line in capsys.readouterr().out.splitlines()]


def test_json_holds_the_same_values(stream, capsys):
    assert main(["cat", stream.url, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows == stream.read().read_all().to_pylist()


def test_text_that_is_printable_stays_readable_in_json(tmp_path, capsys):
    texts = ["é", "日本\u3000語", "a\u00a0b", "😀"]
    stream = segstore.create(tmp_path / "s", pa.schema({"x": pa.string()}))
    stream.append(pa.table({"x": texts}))
    assert main(["cat", stream.url, "--json"]) == 0
    assert capsys.readouterr().out.splitlines() == [f'{{"x": "{text}"}}' for text in texts]


@pytest.mark.parametrize("form", ["csv", "json"])
def test_export_escapes_on_a_terminal(stream, terminal, form):
    flat = segstore.create(f"{stream.url}-flat", pa.schema({HOSTILE: pa.string()}))
    flat.append(pa.table({HOSTILE: [HOSTILE, "é"]}))
    status, shown = terminal("export", flat.url, "--format", form)
    assert (status, unsafe(shown)) == (0, [])
    assert "é" in shown


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_export_of_bytes_to_a_terminal_is_refused(stream, terminal, form, capsys):
    assert terminal("export", stream.url, "--format", form) == (2, "")
    assert "terminal" in capsys.readouterr().err


def test_csv_in_a_pipe_is_exact(tmp_path, capfdbinary):
    stream = segstore.create(tmp_path / "s", pa.schema({"x": pa.string()}))
    stream.append(pa.table({"x": [HOSTILE]}))
    assert main(["export", stream.url, "--format", "csv"]) == 0
    rows = csv.reader(io.StringIO(capfdbinary.readouterr().out.decode(), newline=""))
    assert [*rows] == [["x"], [HOSTILE]]


def test_errors_hold_no_control_characters(stream, tmp_path, capsys):
    file = tmp_path / f"bad{HOSTILE.replace('/', '')}.csv"
    file.write_text(f"{HOSTILE}\n1,2,{HOSTILE}\n", encoding="utf-8", newline="")
    lines = [
        ["append", stream.url, str(file)],
        ["append", stream.url, str(file), "--format", "json"],
        ["append", stream.url, str(file), "--format", "parquet"],
        ["append", stream.url, str(tmp_path / f"none{HOSTILE}.csv")],
        ["append", stream.url, str(tmp_path / f"none.{HOSTILE}")],
        ["export", stream.url, str(file)],
        ["cat", stream.url, "-c", HOSTILE + "x"],
        ["cat", stream.url, "--where", f"{HOSTILE} > 1"],
        ["cat", stream.url, "--where", f"col({HOSTILE + 'x'!r}) > 1"],
        ["cat", stream.url, "--start", HOSTILE],
        ["cat", f"{stream.url}{HOSTILE}"],
        ["cat", f"nowhere{BIDI}"],
        ["create", str(tmp_path / "c"), "--column", f"n:{HOSTILE}"],
        ["docs", HOSTILE],
        ["drop", stream.url],
        [HOSTILE],
    ]
    for line in lines:
        assert main(line) in (2, 3), line
        printed = capsys.readouterr()
        assert printed.err, line
        assert unsafe(printed.out + printed.err) == [], line


def test_log_lines_hold_no_control_characters(capsys, monkeypatch):
    """Warnings, as of folders that can't be searched, go to the same terminal."""
    monkeypatch.setattr(logging.root, "handlers", [])
    assert main(["docs", "runbook", "--json"]) == 0
    logging.getLogger("segstore_ds.read").warning("folder %s\nis left", f"{HOSTILE}{BIDI}")
    said = capsys.readouterr().err
    assert said.startswith("segstore: folder a\\x1b")
    assert (unsafe(said), said.count("\n")) == ([], 1)
    logging.getLogger("segstore_ds.read").warning("stream.readers.register('r', start='head')")
    assert capsys.readouterr().err == "segstore: segstore readers URL --reset r head\n"


def test_pages_hold_no_control_characters(stream, capsys):
    assert main(["show", stream.url, "-o", "-"]) == 0
    assert unsafe(capsys.readouterr().out) == []
    assert unsafe(stream._repr_html_()) == []


def exported(stream, tmp_path, *flags):
    """Return the rows of a CSV export."""
    file = tmp_path / "rows.csv"
    assert main(["export", stream.url, str(file), "--force", *flags]) == 0
    with file.open(encoding="utf-8", newline="") as rows:
        return [*csv.reader(rows)]


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)
def test_csv_prefixes_what_a_spreadsheet_would_run(tmp_path, kind):
    texts = [*FORMULAS, *HARMLESS]
    table = pa.table({"=x": pa.array(texts, pa.string()).cast(kind), "n": [-1] * len(texts)})
    stream = segstore.create(tmp_path / "s", table.schema)
    stream.append(table)
    exact = [["=x", "n"], *([text or "", "-1"] for text in texts)]
    safe = [["'=x", "n"], *([f"'{text}", "-1"] for text in FORMULAS)]
    safe += [[text or "", "-1"] for text in HARMLESS]
    assert exported(stream, tmp_path) == safe
    assert exported(stream, tmp_path, "--raw") == exact


@pytest.mark.parametrize("width", [20, 60])
def test_a_narrow_terminal_cuts_texts_and_no_number_or_flag(terminal, tmp_path, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    large, text = [7, 9_007_199_254_740_993], ["x" * 100, "short"]
    table = pa.table({"text": text, "n": large, "m": large, "flag": [True, None], "more": text})
    table = table.set_column(2, "m", table["n"].cast(pa.decimal128(19, 0)))
    stream = segstore.create(tmp_path / "s", table.schema)
    stream.append(table)
    status, shown = terminal("cat", stream.url)
    _, *lines = shown.splitlines()
    assert status == 0
    assert [line.count("9,007,199,254,740,993") for line in lines] == [0, 1]
    assert [line.count("9007199254740993") for line in lines] == [0, 1]
    assert ["yes" in line for line in lines] == [True, False]
    assert lines[0].count("x…") == 2
    assert max(map(len, lines)) < 80


TABLES = ["ls", "info --segments", "history", "metrics", "tag", "readers", "followers", "pins"]


@pytest.mark.parametrize("width", [40, 60])
def test_no_table_cuts_a_number_on_a_narrow_terminal(
    terminal, tmp_path, width, monkeypatch, capsys
):
    stream = segstore.create(tmp_path / "s", pa.schema({"n": pa.int64()}))
    stream.append(pa.table({"n": range(100_007)}))
    stream.tags.set("a-tag-with-a-very-long-name", 12_345)
    stream.readers.register("a-reader-with-a-very-long-name", start=12_345)
    stream.copy_to(tmp_path / "clone", copy_id="c", mode="clone")
    stream.followers.add(tmp_path / "f")
    monkeypatch.setenv("COLUMNS", str(width))
    found = {}
    for command in TABLES:
        name, *more = command.split()
        line = [name, str(tmp_path) if name == "ls" else stream.url, *more]
        assert main(line) == 0
        status, shown = terminal(*line)
        assert status == 0
        wide, narrow = (
            re.findall(r"(?<!\S)[\d,]{4,}(?!\S)", text) for text in (capsys.readouterr().out, shown)
        )
        assert wide == narrow, command
        found[command] = len(wide) > 0
    assert found == {command: command not in ("followers", "pins") for command in TABLES}


def test_what_is_no_terminal_gets_all_of_a_cell(tmp_path, capsys):
    table = pa.table({"text": ["x" * 20_000], "n": [1]})
    stream = segstore.create(tmp_path / "s", table.schema)
    stream.append(table)
    assert main(["cat", stream.url]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["x" * 20_000, "1"]
