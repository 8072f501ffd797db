"""The commands that change a stream: what they do, and what they ask first."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.cli import DAMAGED, FAILED, NOT_CONFIRMED
from segstore_ds.cli.main import main
from segstore_ds.errors import ReaderConflictError
from segstore_ds.retention.drop import DroppableLog, commit_drop

EVENTS = pa.table({"n": [1, 2, 3]})


@pytest.fixture
def stream(tmp_path):
    made = segstore.create(tmp_path / "clicks", EVENTS.schema, upkeep=None)
    made.append(EVENTS)
    return made


def done(capsys):
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("command", "after"),
    [
        (["truncate", "2"], lambda stream: stream.head == 2),
        (["seal"], lambda stream: stream.sealed),
        (["restore", "0"], lambda stream: stream.head == stream.tail == 3),
        (["tag", "t", "--delete"], lambda stream: not stream.tags),
        (["readers", "--release", "r"], lambda stream: next(iter(stream.readers)).record.released),
        (["drop"], lambda stream: not segstore.exists(stream.url)),
        (["maintain", "--keep", "30d"], lambda stream: stream._log.root.log_start == 1),
        (["maintain", "--grace", "7d"], lambda stream: stream.version >= 3),
        (["maintain"], lambda stream: stream.version >= 3),
        (["retain", "--max-bytes", "0", "--ignore-readers"], lambda stream: stream.head == 3),
    ],
)
def test_what_deletes_or_ends_asks_first(stream, command, after, capsys, monkeypatch):
    monkeypatch.setattr("segstore_ds.retention.deletion.plan_log_start", lambda *_, **__: 1)
    stream.tags.set("t", 1)
    stream.readers.register("r", start=0)
    leftover = Path(stream.url.removeprefix("file://"), "log", f".tmp-1-{0:016x}")  # for maintain
    leftover.write_bytes(b"x")
    os.utime(leftover, (0, 0))
    line = [command[0], stream.url, *command[1:]]
    before = stream.refresh().version
    assert main(line) == NOT_CONFIRMED
    assert capsys.readouterr().err.endswith("There is no terminal to confirm at: add --yes.\n")
    assert stream.refresh().version == before
    if command[0] not in ("seal", "restore"):
        assert main([*line, "--dry-run", "--json"]) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[0])
        assert stream.refresh().version == before
    assert main([*line, "--yes", "--json"]) == 0
    assert isinstance(done(capsys), dict)
    assert after(stream if command[0] == "drop" else stream.refresh())


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("n\n", NOT_CONFIRMED)])
def test_question_on_a_terminal(stream, answer, status, monkeypatch):
    monkeypatch.setattr("segstore_ds.cli.show.typer.confirm", lambda *_, **__: answer == "y\n")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    assert main(["seal", stream.url]) == status
    assert stream.refresh().sealed == (status == 0)


def test_nobody_is_asked_about_nothing(stream, capsys):
    for line in (["truncate", "0"], ["maintain"], ["maintain", "--keep", "0s"], ["retain"]):
        assert main([line[0], stream.url, *line[1:]]) == 0
    assert "Forget" not in capsys.readouterr().err
    for line in (
        ["tag", "no", "--delete"],
        ["pins", "--release", "no"],
        ["columns", "--drop", "no"],
    ):
        assert main([line[0], stream.url, *line[1:]]) == 2
        assert "no such" in capsys.readouterr().err
    for more in ([], ["--dry-run"]):  # which always says what it breaks
        assert main(["maintain", stream.url, "--free-now", *more]) == 0
        assert "publish tables again" in capsys.readouterr().out


def test_truncate_beyond_the_tail_is_refused_before_it_asks(stream, capsys):
    for more in ([], ["--dry-run"], ["--yes"]):
        assert main(["truncate", stream.url, "99", *more]) == FAILED
        assert "beyond the tail" in capsys.readouterr().err


@pytest.mark.parametrize("harm", ["interrupted", "damaged"])
def test_drop_asks_about_what_it_can_t_count(stream, harm, tmp_path, monkeypatch, capsys):
    """An interrupted drop is finished, and a damaged stream dropped, from a terminal too."""
    monkeypatch.setattr("segstore_ds.status.table.SEGMENTS.rows", 1)
    for _ in range(3):
        stream.append(EVENTS, layout=segstore.Layout(inline_bytes=0))
    if harm == "interrupted":
        log = DroppableLog(stream._log.storage)
        log.open()
        commit_drop(log, "")
    else:
        for part in (tmp_path / "clicks").glob("*/*-segments-*"):  # under both names
            part.unlink()
    assert main(["drop", stream.url, "--dry-run"]) == FAILED
    monkeypatch.setattr("segstore_ds.cli.show.typer.confirm", lambda *_, **__: True)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    assert main(["drop", stream.url]) == 0
    left = [path for path in (tmp_path / "clicks").rglob("*") if path.is_file()]
    assert {path.parent.name for path in left} == {"log"}
    assert main(["drop", str(tmp_path / "none")]) == FAILED
    assert "no stream here" in capsys.readouterr().err


def test_retain_says_how_much_goes_and_what_keeps_events(stream, capsys):
    before = stream.version
    assert main(["retain", stream.url, "--max-bytes", "0"]) == NOT_CONFIRMED
    assert "Drop 3 events" in capsys.readouterr().err
    assert main(["retain", stream.url, "--max-bytes", "0k", "--dry-run"]) == 0
    assert capsys.readouterr().out == "would have dropped 3 events, the head is 3\n"
    assert stream.refresh().version == before
    stream.readers.register("etl", owner="ada", start=1)
    bounds = ["--max-bytes=0", "--min-age", "1d", "--min-bytes=1g"]
    assert main(["retain", stream.url, *bounds]) == 0
    printed = capsys.readouterr().out
    assert "dropped 0 events, the head is 0" in printed
    assert "kept: reader 'etl' of 'ada' has read up to 1" in printed
    assert "kept: min_age=86400 s keeps the events from 0 on until" in printed
    assert "kept: min_bytes=1073741824 keeps the events from 0 on" in printed
    for flag in ("--max-age", "--min-age", "--max-bytes", "--min-bytes"):
        assert main(["retain", stream.url, flag, "7x"]) == FAILED
        said = capsys.readouterr().err
        assert "give --m" in said
        assert " such as " in said
        assert "timedelta" not in said
    assert main(["retain", stream.url, "--max-age", "0s", "--ignore-readers", "-y"]) == 0
    assert "dropped 3 events, the head is 3\n" in capsys.readouterr().out


def test_tags_and_copies(stream, tmp_path, capsys):
    assert main(["tag", stream.url, "t", "1", "--json"]) == 0
    assert done(capsys) == {"name": "t", "offset": 1, "version": stream.refresh().tags["t"].version}
    for repeated in (False, True):
        assert main(["copy", stream.url, str(tmp_path / "b"), "--start", "tag:t", "--json"]) == 0
        row = done(capsys)
        assert (row["start"], row["end"], row["repeated"]) == (1, 3, repeated)
    assert main(["copy", "--clone", stream.url, str(tmp_path / "c"), "--id", "mine", "--json"]) == 0
    assert segstore.open(tmp_path / "c").tail == 3
    assert list(stream.refresh().pins) == ["mine"]
    assert main(["followers", str(tmp_path / "c"), "--add", str(tmp_path / "d")]) == FAILED
    assert "call segstore materialize URL on it first" in capsys.readouterr().err
    assert main(["materialize", str(tmp_path / "c"), "--json"]) == 0
    assert done(capsys) == {"copied": 0}  # the events are inline
    assert stream.refresh().pins == {}


def test_columns_are_renamed_and_dropped(tmp_path, capsys):
    url = str(tmp_path / "users")
    segstore.create(url, like={"user": "ada", "n": 1})
    assert main(["columns", url, "--rename", "n=count", "--json"]) == 0
    assert done(capsys) == {"columns": ["user", "count"]}
    assert main(["columns", url, "--drop", "user"]) == NOT_CONFIRMED
    assert main(["columns", url, "--drop", "user", "--rename", "count=n", "--yes"]) == 0
    assert segstore.open(url).schema.names == ["n"]
    assert main(["columns", url, "--rename", "n"]) == 2


def test_redact_counts_asks_and_clears(stream, capsys):
    line = ["redact", stream.url, "--where", "n == 2", "-c", "n", "--json"]
    assert main(line) == NOT_CONFIRMED
    assert main([*line, "--dry-run"]) == 0
    assert done(capsys) == {"dry_run": True, "rows": 1}
    assert main([*line, "--yes"]) == 0
    assert done(capsys)["rows"] == 1
    assert stream.read().read_all()["n"].to_pylist() == [1, None, 3]
    assert main(["redact", stream.url, "-c", "n", "--yes"]) == 2
    line = ["redact", stream.url, "--where", "n == 3", "-c", "n", "--yes", "--forget"]
    assert main(line) == 0
    assert "not forgotten before" in capsys.readouterr().out
    assert main([*line, "--json"]) == 0
    assert done(capsys)["forgotten"]["done"] is False


@pytest.mark.parametrize("more", [["--forget"], ["--reason", "request 7"], ["--id", "r"]])
def test_rule_of_an_age_takes_no_flags_of_a_redaction(stream, more):
    """They would be passed over: somebody would believe that values are forgotten."""
    assert main(["redact", stream.url, "-c", "n", "--after", "30d", "--yes", *more]) == FAILED
    assert stream.refresh().settings.expiry == ()


def test_versions_of_before_a_redaction_need_a_flag(stream, tmp_path, capsys):
    """What a clone still holds is told with the commands for it."""
    version, clone = stream.version, str(tmp_path / "clone")
    stream.copy_to(clone, mode="clone", copy_id="c")
    redact = ["redact", stream.url, "--where", "n == 2", "-c", "n", "--yes", "--forget"]
    assert main(redact) == 0
    assert "or drop it; if it was deleted, call segstore pins URL --release c" in (
        capsys.readouterr().out
    )
    assert main(["copy", stream.url, "memory://elsewhere", "--clone"]) == FAILED
    assert "use segstore copy URL TARGET to copy between" in capsys.readouterr().err
    again = ["copy", stream.url, f"{clone}-2", "--clone", "--version", str(version)]
    for line in (["restore", stream.url, str(version), "--yes"], again):
        assert main(line) == FAILED
        assert "or set --allow-redacted" in capsys.readouterr().err
        assert main([*line, "--allow-redacted"]) == 0


def test_copy_goes_on_from_another_folder(stream, tmp_path, capsys, monkeypatch):
    """A target is a place, however it is spelled, and one name in two folders is two places."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        assert main(["copy", stream.url, "copy", "--clone", "--json"]) == 0
        assert not done(capsys)["repeated"]
    assert main(["copy", stream.url, str(tmp_path / "a" / "copy"), "--clone", "--json"]) == 0
    assert done(capsys)["repeated"]


def test_redact_after_an_age_sets_a_rule(stream, capsys):
    line = ["redact", stream.url, "-c", "n", "--after", "30d", "--json"]
    assert main(line) == NOT_CONFIRMED
    assert main([*line, "--dry-run"]) == 0
    assert stream.refresh().settings.expiry == ()
    assert main([*line[:-3], "--after", "3x"]) == 2
    assert "give after as an age such as 7d" in capsys.readouterr().err
    assert main([*line, "--where", "n > 1", "--yes"]) == 0
    (rule,) = stream.refresh().settings.expiry
    assert (rule.column, rule.age_s, rule.filters) == ("n", 30 * 86_400, "n > 1")
    capsys.readouterr()
    assert main(["info", stream.url]) == 0
    assert "n where n > 1 is null after 30d" in capsys.readouterr().out
    assert main(["redact", stream.url, "-c", "n", "--after", "never"]) == 0
    assert "expire no more" in capsys.readouterr().out
    assert stream.refresh().settings.expiry == ()


def test_redact_is_refused_for_a_kept_tag_before_it_asks(stream, capsys):
    """Who confirms would only then read that a tag has to be removed first."""
    stream.tags.set("v1", keep=True)
    line = ["redact", stream.url, "-c", "n"]
    for more in (["--after", "30d"], ["--after", "30d", "--dry-run"], ["--where", "n == 2"]):
        assert main([*line, *more]) == FAILED
        assert "tags keep versions" in capsys.readouterr().err
    assert main([*line, "--after", "never"]) == 0


@pytest.mark.parametrize("form", [[], ["--format", "iceberg"]])
def test_publish_shows_removes_and_asks(form, stream, capsys):
    assert main(["publish", stream.url, *form]) == 0
    why = "3 events are left out, as the first of them is in no Parquet file yet; settle=True"
    said = f"shows offsets [0, 0); {why}"
    assert said in capsys.readouterr().out
    assert main(["publish", stream.url, "--settle", "--json", *form]) == 0
    assert done(capsys)["tail"] == 3
    assert main(["publish", stream.url, "--dry-run", *form]) == 0
    assert "lacks 0 events" in capsys.readouterr().out
    assert main(["publish", stream.url, "--auto", "--json", *form]) == 0
    assert done(capsys)["tail"] == 3
    assert main(["info", stream.url]) == 0
    shown = "offsets [0, 3), 0 events behind, published after commits"
    assert f"{'iceberg  ' if form else 'delta    '} {shown}" in capsys.readouterr().out
    assert main(["publish", stream.url, "--remove", *form]) == NOT_CONFIRMED
    assert main(["publish", stream.url, "--remove", "--yes", "--json", *form]) == 0
    assert done(capsys)["deleted"] > 0


def test_publish_the_newest_events(stream, capsys):
    how = ["publish", stream.url, "--latest-by", stream.schema.names[0]]
    assert main([*how, "--dry-run"]) == 0
    assert "there is no table" in capsys.readouterr().out
    assert main([*how, "--auto", "--json"]) == 0
    assert done(capsys)["url"] == f"{stream.url}_latest"
    assert main(["info", stream.url]) == 0
    said = f"delta latest newest by {stream.schema.names[0]} at {stream.url}_latest, 0 events"
    assert said in capsys.readouterr().out
    assert main([*how, "--remove"]) == NOT_CONFIRMED
    assert main([*how, "--remove", "--yes", "--json"]) == 0
    assert done(capsys)["deleted"] > 0


def test_followers(stream, tmp_path, capsys):
    url = str(tmp_path / "second")
    assert main(["followers", stream.url, "--add", url]) == 0
    capsys.readouterr()
    assert main(["followers", stream.url, "--json"]) == 0
    lag = {"version": stream.refresh().version, "lag_versions": 0, "lag_events": 0}
    assert done(capsys) == {"url": f"file://{url}", **lag}
    Path(url).rename(f"{url}-away")
    assert main(["followers", stream.url]) == 0
    assert f"DOWN file://{url}: unreachable" in capsys.readouterr().out
    Path(f"{url}-away").rename(url)
    assert main(["followers", stream.url, "--remove", f"{url}-wrong", "-y"]) == 0
    assert "second-wrong is no follower\n" in capsys.readouterr().out
    assert main(["followers", url, "--promote", "--yes", "--json"]) == 0
    assert done(capsys) == {"generation": 1}
    assert main(["followers", stream.url, "--remove", url]) == NOT_CONFIRMED


def test_compact_and_rescue(stream, tmp_path, capsys):
    stream.append(EVENTS)
    for few in (["--target-rows", "5"], ["--target-bytes", "500"]):
        assert main(["compact", stream.url, "--json", *few]) == 0
        assert done(capsys)["commits"] == 0
    assert main(["compact", stream.url, "--json"]) == 0
    row = done(capsys)
    assert (row["segments_before"], row["segments_after"]) == (2, 1)
    split = ["--mode", "split", "--target-rows", "2"]
    assert main(["compact", stream.url, "--json", *split]) == 0
    assert done(capsys)["segments_after"] == 3
    assert main(["compact", stream.url, "--target-bytes", "much"]) == 2
    assert "--target-bytes" in capsys.readouterr().err
    assert main(["verify", stream.url, "--json"]) == 0
    assert (done(capsys)["rows"]) == 6
    assert main(["repair", stream.url, "--json"]) == 0
    assert done(capsys)["damaged"] == []
    assert main(["repair", stream.url, "--allow-loss"]) == NOT_CONFIRMED
    assert main(["salvage", stream.url, str(tmp_path / "new")]) == 0
    assert "[0, 6) is now at 0" in capsys.readouterr().out


@pytest.mark.usefixtures("no_inline")
def test_damage_that_stays_and_salvage_with_losses_have_a_status_of_their_own(tmp_path, capsys):
    stream = segstore.create(tmp_path / "clicks", EVENTS.schema, upkeep=None)
    stream.append(EVENTS)
    (segment,) = (tmp_path / "clicks").rglob("*.arrow")
    data = bytearray(segment.read_bytes())
    data[200] ^= 1
    segment.write_bytes(data)
    (tmp_path / "clicks" / "log" / "_latest").write_bytes(b"x")
    assert main(["repair", stream.url]) == DAMAGED
    printed = capsys.readouterr().out
    assert "put back: the hint" in printed
    assert f"DAMAGED segments/{segment.parent.name}/{segment.name}" in printed
    assert f"segstore salvage {stream.url} NEW_URL --skip-damaged" in printed
    new = str(tmp_path / "new")
    assert main(["salvage", stream.url, new, "--skip-damaged"]) == DAMAGED
    assert "LOST [0, 3)" in capsys.readouterr().out


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_repair_that_refuses_to_lose_a_commit_has_the_status_of_damage(
    stream, tmp_path, capsys, damage
):
    damage(tmp_path / f"clicks/log/{stream.version:020d}")
    assert main(["repair", stream.url]) == DAMAGED
    assert "--allow-loss" in capsys.readouterr().err


def test_settings_are_shown_and_changed(stream, capsys):
    def known():
        assert main(["settings", stream.url, "--json"]) == 0
        return done(capsys)

    assert known()["upkeep"] is None
    change = ["settings", stream.url, "--key-columns", "n", "--retention"]
    rule = "max_bytes=10g,max_age=7d,respect_readers=false"
    assert main([*change, rule]) == NOT_CONFIRMED
    assert f"delete by retention {rule}? There is no terminal" in capsys.readouterr().err
    for said in (rule, rule.replace("false", "True"), "max_age=90s,respect_readers=true"):
        assert main([*change, said, "--yes"]) == 0
        shown = f"retention   {said.lower()}\n"  # which the flag takes again
        assert shown in capsys.readouterr().out
    assert main([*change, "max_age=7d,respect_readers=yes", "-y"]) == 2
    assert main(["settings", stream.url, "--upkeep", "keep=2d,grace=3d"]) == NOT_CONFIRMED
    assert "by upkeep keep=2d,keep_versions=10000,grace=3d?" in capsys.readouterr().err
    assert main(["settings", stream.url, "--upkeep", "keep=2d,grace=3d", "-y"]) == 0
    capsys.readouterr()
    found = known()
    assert (found["key_columns"], found["upkeep"]["keep_s"]) == (["n"], 172_800)
    for off in ("--key-columns", "--time-column", "--retention", "--upkeep"):
        assert main(["settings", stream.url, off, "none"]) == 0
    capsys.readouterr()
    nothing = {"expiry": [], "publish": [], "key_columns": [], "time_column": None, "rules": None}
    assert known() == nothing | {"retention": None, "upkeep": None}
    for wrong in ("keep=2d,more=1", "keep_versions=x", "grace"):
        assert main(["settings", stream.url, "--upkeep", wrong, "-y"]) == 2
    assert main(["settings", stream.url, "--upkeep", "default", "-y"]) == 0
    capsys.readouterr()
    assert known()["upkeep"]["keep_s"] == 86_400


def test_rules_are_set_and_obeyed(stream, capsys, tmp_path):
    settings = ["settings", stream.url, "--rules"]
    rules = {"checks": {"some": "n >= 0"}, "not_null": ["n"]}
    assert main([*settings, json.dumps(rules)]) == 0
    assert (
        'rules       {"not_null": ["n"], "checks": {"some": "n >= 0"}}' in capsys.readouterr().out
    )
    (tmp_path / "bad.ndjson").write_text('{"n": 1}\n{"n": -5}\n')
    before = stream.refresh().tail
    assert main(["append", stream.url, str(tmp_path / "bad.ndjson")]) != 0
    assert "row=1, column='n', rule='some: n >= 0', value=-5" in capsys.readouterr().err
    assert stream.refresh().tail == before
    assert main([*settings, json.dumps({**rules, "dead_letters": f"{tmp_path}/letters"})]) == 0
    batch = ["--writer", "w", "--batch", "1"]
    assert main(["append", stream.url, str(tmp_path / "bad.ndjson"), *batch]) == 0
    letters = segstore.open(f"{tmp_path}/letters").read().read_all()
    assert letters["_reason"].to_pylist() == ["some: n >= 0, row 1"]
    for wrong in ("{", '{"not_null": ["m"]}', '{"checks": {"a": "nonsense"}}'):
        assert main([*settings, wrong]) == 2
    assert main([*settings, "none"]) == 0
    assert stream.refresh().settings.rules is None


def test_a_reader_is_moved_to_a_cut(stream, capsys):
    reader = stream.readers.register("r", owner="team", lapse_s=77)
    reader.publish(3)
    move = ["readers", stream.url, "--reset", "r", "1"]
    assert main([*move, "--dry-run"]) == 0
    assert main(move) == NOT_CONFIRMED
    capsys.readouterr()
    assert main([*move, "--yes", "--json"]) == 0
    assert done(capsys) == {"name": "r", "before": 3, "offset": 1}
    (seen,) = stream.readers
    assert (seen.record.offset, seen.record.owner, seen.record.lapse_s) == (1, "team", 77)
    with pytest.raises(ReaderConflictError, match="start again"):
        reader.publish(3)
    assert main(["readers", stream.url, "--reset", "nobody", "1", "--yes"]) == 2
    assert main(["readers", stream.url, "--reset", "r", "9", "--yes"]) == 2


def test_damaged_reader_is_named_with_the_command_for_it(stream, tmp_path, capsys):
    """By what looks at all readers; only the newest record is gone."""
    stream.readers.register("r").publish(2)
    max((tmp_path / "clicks/readers/r").iterdir()).unlink()
    for command in ("readers", "metrics", "verify"):
        assert main([command, stream.url]) == (DAMAGED if command == "verify" else 0)
        assert "with segstore readers URL --release NAME" in capsys.readouterr().out


def test_pins_are_listed_and_released(stream, tmp_path, capsys):
    assert main(["copy", stream.url, str(tmp_path / "clone"), "--clone", "--id", "c"]) == 0
    capsys.readouterr()
    assert main(["pins", stream.url, "--json"]) == 0
    assert done(capsys).keys() == {"name", "version", "url", "clone_id", "made"}
    assert main(["pins", stream.url, "--release", "c"]) == NOT_CONFIRMED
    assert main(["pins", stream.url, "--release", "c", "--yes"]) == 0
    assert stream.refresh().pins == {}
    assert main(["pins", stream.url, "--release", "c", "--yes"]) == 2


def test_history_says_why_and_who(stream, capsys, monkeypatch):
    redact = ["redact", stream.url, "--columns", "n", "--where", "n == 1"]
    assert main([*redact, "--short-grace", "--yes"]) == 2
    monkeypatch.setenv("SEGSTORE_CLIENT", "user/etl app/nightly")
    assert main([*redact, "--reason", "request 7", "--forget", "--short-grace", "--yes"]) == 0
    capsys.readouterr()
    assert main(["history", stream.url, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (row,) = [row for row in rows if row["reason"] == "request 7" and row["batch_id"]]
    assert row["application"] == "nightly"
    assert row["client"].endswith(" user/etl")
    first = rows[0]["client"].split(" ")
    assert [word.partition("/")[0] for word in first][3:] == ["user", "host"]


def test_errors_are_json_on_demand_and_speak_of_commands(stream, tmp_path, capsys):
    for line in (
        ["info", str(tmp_path / "none"), "--json"],
        ["--json", "info", str(tmp_path / "none")],
    ):
        assert main(line) == 2
        said = json.loads(capsys.readouterr().err)
        assert (said["code"], said["status"], said["retryable"]) == ("SEG_NOT_FOUND", 2, False)
        assert said["remedy"] == "check the location; segstore create URL creates a stream"
    assert main(["truncate", stream.url, "99", "--json"]) == 2
    assert "beyond the tail" in json.loads(capsys.readouterr().err)["error"]
    assert main(["seal", stream.url, "--json"]) == NOT_CONFIRMED
    assert json.loads(capsys.readouterr().err)["status"] == NOT_CONFIRMED
    stream.settings.update(expiry={"n": {"age": "9d", "filters": "n == 1"}})
    for line, said in (
        (["columns", "--rename", "n=m"], "segstore redact URL --columns COLUMN --after AGE"),
        (["tag", "v1", "--keep"], "or call segstore redact URL --columns COLUMN --after never"),
        (["history", "--since", "x"], "give a time with a zone, like 2026-11-20T10:00:00Z\n"),
        (["cat", "--as-of", "x"], "give a time with a zone, like 2026-11-20T10:00:00Z\n"),
        (["readers", "--reset", "nobody", "1", "-y"], "segstore readers URL lists those"),
        (["settings", "--upkeep", "grace=1h", "-y"], "grace is at least 1d"),
        (["settings", "--upkeep", "keep_versions=0", "-y"], "keep_versions is at least 1"),
    ):
        assert main([line[0], stream.url, *line[1:]]) == 2
        assert said in capsys.readouterr().err
    stream.truncate(2)
    assert main(["cat", stream.url, "--start", "0"]) == 2
    assert capsys.readouterr().err.endswith("head=2; start at 'head'\n")
