"""The command `retain`."""

import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.cli import FAILED, NOT_CONFIRMED
from segstore_ds.cli.main import main

EVENTS = pa.table({"n": [1, 2, 3]})


@pytest.fixture
def url(tmp_path):
    """A stream of three events."""
    segstore.create(tmp_path / "clicks", EVENTS.schema).append(EVENTS)
    return str(tmp_path / "clicks")


def test_retain_drops_and_says_how_much(url, capsys):
    assert main(["retain", url, "--max-bytes", "0k", "--yes"]) == 0
    assert capsys.readouterr().out == "dropped 3 events, the head is 3\n"
    assert segstore.open(url).head == 3


def test_retain_asks_first_and_a_dry_run_only_tells(url, capsys):
    assert main(["retain", url, "--max-bytes", "0"]) == NOT_CONFIRMED
    assert "Drop 3 events" in capsys.readouterr().err
    assert main(["retain", url, "--max-bytes", "0", "--dry-run"]) == 0
    assert capsys.readouterr().out == "would have dropped 3 events, the head is 3\n"
    assert segstore.open(url).version == 1


def test_retain_says_what_keeps_events(url, capsys):
    segstore.open(url).readers.register("etl", owner="ada", start=1)
    bounds = ["--max-bytes=0", "--min-age", "1d", "--min-bytes=1g"]
    assert main(["retain", url, *bounds, "--dry-run"]) == 0
    assert [line[:10] for line in capsys.readouterr().out.splitlines()] == [
        "would have",
        *["kept: min_"] * 2,
        "kept: read",
    ]
    assert main(["retain", url, *bounds]) == 0
    printed = capsys.readouterr().out
    assert "dropped 0 events, the head is 0" in printed
    assert "kept: reader 'etl' of 'ada' has read up to 1" in printed
    assert "kept: min_age=86400 s keeps the events from 0 on until" in printed
    assert "kept: min_bytes=1073741824 keeps the events from 0 on" in printed
    assert main(["retain", url, "--max-age", "0s", "--ignore-readers", "-y"]) == 0
    assert "dropped 3 events" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--max-age", "--min-age", "--max-bytes", "--min-bytes"])
def test_retain_says_what_bounds_are(url, capsys, flag):
    assert main(["retain", url, flag, "7x"]) == FAILED
    assert "or a text such as" in capsys.readouterr().err
    assert segstore.open(url).head == 0
