"""The commands `info` and `verify`, how failures end a command, and its storage options."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
import typer
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import register_implementation

import segstore_ds as segstore
from segstore_ds.cli import FAILED, RETRYABLE
from segstore_ds.cli.app import GROUPS
from segstore_ds.cli.arguments import Run, spell_flags
from segstore_ds.cli.main import main
from segstore_ds.errors import ConflictError
from segstore_ds.format.envelope import encode_envelope
from segstore_ds.format.root import encode_root
from segstore_ds.log.commit import Change


@pytest.fixture
def url(tmp_path):
    """A stream of three events by one writer."""
    table = pa.table({"user": ["ada", "bob", None], "n": [1, 2, 3]})
    stream = segstore.create(tmp_path / "clicks", table.schema)
    stream.append(table, writer_id="etl", batch_id=7)
    return str(tmp_path / "clicks")


def test_info_prints_the_streams_contents(url, capsys):
    assert main(["info", url]) == 0
    printed = capsys.readouterr().out
    assert "version   1 (append)" in printed
    assert "events    3, offsets [0, 3)" in printed
    assert "writers   etl (batch 7)" in printed
    assert "column    user: string" in printed
    assert "sealed" not in printed


def test_info_knows_every_writer_and_shows_some(url, capsys, monkeypatch):
    monkeypatch.setattr("segstore_ds.status.table.WRITERS.rows", 3)
    stream = segstore.open(url)
    for number in range(25):
        row = pa.table({"user": ["x"], "n": [number]})
        stream.append(row, writer_id=f"w{number:02}", batch_id=number)
    assert stream._log.root.writers_parts
    assert main(["info", url]) == 0
    printed = capsys.readouterr().out
    assert "writers   etl (batch 7), w00 (batch 0), w01" in printed
    assert "w18 (batch 18), and 6 more" in printed


def test_verify_of_a_sound_stream_ends_with_0(url, capsys):
    assert main(["verify", url]) == 0
    assert capsys.readouterr().out == (
        "verified 2 versions, 1 segments, 1 frames, 3 events\nno damage\n"
    )


@pytest.mark.usefixtures("no_inline")
def test_verify_names_the_damage_and_ends_with_1(url, capsys):
    (segment,) = Path(url).rglob("*.arrow")
    data = bytearray(segment.read_bytes())
    data[200] ^= 1
    segment.write_bytes(data)
    assert main(["verify", url]) == 1
    printed = capsys.readouterr().out
    assert f"DAMAGED {segment.relative_to(url)}" in printed
    assert printed.endswith("damaged: 1 problems\n")


@pytest.mark.usefixtures("no_inline")
@pytest.mark.parametrize("damage", ["flipped", "empty", "cut"])
def test_verify_of_what_can_t_be_opened_ends_with_1(url, capsys, damage):
    """Damage is what it was asked for, wherever it is."""
    newest = max(Path(url, "log").glob("0*"))
    data = newest.read_bytes()
    flipped = data[:-1] + bytes([data[-1] ^ 1])
    newest.write_bytes({"flipped": flipped, "empty": b"", "cut": data[:40]}[damage])
    assert main(["verify", url]) == 1
    printed = capsys.readouterr().out
    assert f"DAMAGED log/{newest.name}" in printed
    assert printed.endswith("damaged: 1 problems\n")


def test_verify_of_a_newer_format_ends_with_2(url, capsys):
    """It may be sound: nothing can be said."""
    stream = segstore.open(url)
    root = replace(stream._log.root, version=2, reader_features=("of-tomorrow",))
    stream._log.storage.create("log/" + "2".zfill(20), encode_envelope(encode_root(root)))
    assert main(["verify", url]) == 2
    assert "SEG_UNSUPPORTED_VERSION" in capsys.readouterr().err


def test_verify_counts_what_keeps_a_stream_from_opening(url, capsys, monkeypatch):
    """Also if everything else is valid: here an origin can't be read."""
    with monkeypatch.context() as careless:
        careless.setattr("segstore_ds.log.commit.check_transition", lambda *_: None)
        segstore.open(url)._log.commit(
            lambda root, _: Change(replace(root, origins={"x": "?"}, operation="copy")),
            transaction="t" * 32,
        )
    assert main(["verify", url]) == 1
    assert "not an object: where=\"origin 'x'\"" in capsys.readouterr().out


def test_a_terminal_that_can_t_show_a_name_gets_it_escaped(tmp_path):
    """ASCII on both streams: a column's name ended the command halfway."""
    table = pa.table({"naïve": [1]})
    segstore.create(tmp_path / "strëam", table.schema).append(table)
    done = subprocess.run(
        [sys.executable, "-m", "segstore_ds.cli.main", "info", str(tmp_path / "strëam")],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"column    na\\xefve: int64" in done.stdout


@pytest.mark.usefixtures("no_inline")
def test_verify_shows_leftovers_as_no_damage(url, capsys):
    stray = Path(url, "segments", "stray")
    stray.mkdir()
    (stray / "0-0-0.arrow").write_bytes(b"half a segment")
    assert main(["verify", url]) == 0
    assert "leftover, no damage: segments/stray/0-0-0.arrow" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["info", "verify"])
def test_missing_stream_ends_with_2_and_one_line(command, tmp_path, capsys):
    assert main([command, str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("segstore: SEG_NOT_FOUND: no stream here")
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["tag", "{url}", "here", "tail"], "or move the tag with --move\n"),
        (["copy", "{url}", "{url}-2", "--version", "1"], "a clone and copy that\n"),
        (["maintain", "{url}", "--grace", "0s", "--yes"], "--short-grace if there are none\n"),
    ],
)
def test_advice_names_flags_where_the_command_has_them(url, capsys, arguments, advice):
    segstore.open(url).tags.set("here", "head")
    assert main([each.format(url=url) for each in arguments]) == 2
    assert capsys.readouterr().err.endswith(advice)


@pytest.mark.parametrize("verb", [["append", "{url}"], ["create", "{url}-new", "--like"]])
def test_a_file_that_is_missing_is_named(url, capsys, verb, tmp_path):
    arguments = [each.format(url=url) for each in verb]
    assert main([*arguments, str(tmp_path / "gone.csv")]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "can't be read: No such file or directory" in shown
    assert "Error]" not in shown


def test_deleting_objects_asks_only_if_something_would_go(url, capsys):
    """Nobody can be asked here."""
    assert main(["maintain", url, "--grace", "7d"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("flag", [["--min-versions", "3"], ["--short-grace"]])
def test_a_flag_that_would_mean_nothing_is_refused(url, capsys, flag):
    """Somebody may believe that it limits what is deleted."""
    assert main(["maintain", url, "--yes", *flag]) == FAILED
    assert f"{flag[0]} needs --" in capsys.readouterr().err


def test_flags_of_every_command_may_stand_before_it(url, capsys):
    for line in (["--json", "info", url], ["info", "--json", url]):
        assert main(line) == 0
        assert json.loads(capsys.readouterr().out)["events"] == 3
    wrong, right = '{"key": "env:SEGSTORE_NO_SUCH"}', "{}"
    assert main(["--storage-options", wrong, "info", url]) == 2
    assert "SEGSTORE_NO_SUCH" in capsys.readouterr().err
    assert main(["--storage-options", wrong, "info", url, "--storage-options", right]) == 0


def test_a_verb_that_is_not_there_is_one_line_with_the_nearest(capsys):
    assert main(["verfy", "u"]) == FAILED
    said = capsys.readouterr().err
    assert said.startswith("segstore: No such command 'verfy'. Did you mean 'verify'?")
    assert said.count("\n") == 1


def test_failure_that_may_pass_has_a_status_of_its_own(url, capsys):
    """A script repeats it, and nothing else."""
    lost = ConflictError("lost every race")

    def fail(*_, **__):
        raise lost

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segstore.Stream, "seal", fail)
        assert main(["seal", url, "--yes"]) == RETRYABLE
    assert "lost every race" in capsys.readouterr().err


def test_without_its_libraries_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "typer", None)
    assert main(["info", "/nowhere"]) == FAILED
    assert "pip install 'segstore-ds[cli]'" in capsys.readouterr().err


def test_help_loads_no_storage_and_no_arrow():
    """It takes a fifth of a second, and half a second with them."""
    code = "import sys; from segstore_ds.cli.main import main; main(['--help'])\n"
    code += "names = {'pyarrow', 'fsspec', 'numpy'}\nprint(names & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert all(f" {title} " in done.stdout for title in GROUPS)
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch, tmp_path):
    for name in ("SEGSTORE_STORAGE_OPTIONS", "SEGSTORE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_flag_comes_before_the_variable_and_that_before_the_file(tmp_path, monkeypatch):
    assert Run().options() is None
    folder = tmp_path / "segstore"
    folder.mkdir()
    (folder / "config.toml").write_text('[storage_options."s3://logs"]\nkey = "env:KEY"\n')
    assert Run().options() == {"s3://logs": {"key": "env:KEY"}}
    monkeypatch.setenv("SEGSTORE_STORAGE_OPTIONS", '{"key": "b"}')
    assert Run().options() == {"key": "b"}
    (tmp_path / "options.json").write_text('{"key": "c"}')
    assert Run(given=f"@{tmp_path}/options.json").options() == {"key": "c"}


@pytest.mark.parametrize("given", ["[]", '{"key": "hunter2"', "@/nowhere/options.json"])
def test_what_is_no_object_is_refused_unseen(given):
    with pytest.raises(typer.BadParameter) as refused:
        Run(given=given).options()
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("text", ["storage_options = 3", "key = "])
def test_config_that_can_t_be_read_is_refused(tmp_path, monkeypatch, text):
    monkeypatch.setenv("SEGSTORE_CONFIG", str(tmp_path / "mine.toml"))
    with pytest.raises(typer.BadParameter, match="there is no file"):
        Run().options()
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(typer.BadParameter, match=r"mine\.toml"):
        Run().options()


class _PlainFileSystem(MemoryFileSystem):
    """A filesystem that segstore does not know, so it is refused without a promise."""

    protocol = "cliplainfs"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("cliplainfs://"))


def test_a_filesystem_that_is_refused_takes_a_promise(capsys, tmp_path):
    register_implementation("cliplainfs", _PlainFileSystem, clobber=True)
    rows, url = tmp_path / "rows.json", "cliplainfs://test/s"
    rows.write_text('{"n": 1}\n')
    for line in (
        ["create", url, "--column", "n:int64"],
        ["append", url, str(rows)],
        ["tag", url, "t", "--keep"],
        ["repair", url],
        ["drop", url, "--yes"],
    ):
        assert main(line) == FAILED
        assert "or pass --single-writer when only one process" in capsys.readouterr().err
        assert main([*line, "--single-writer"]) == 0
    assert main(["--single-writer", "append", url, str(rows), "--create"]) == 0


def test_advice_of_a_flag_that_the_command_lacks_is_pythons():
    """It is a flag of another command, or none at all."""
    options = [SimpleNamespace(name="start", opts=["--start"])]
    text = "set single_writer=True, or start='reader:my own'; repair(url, start='head') as well"
    spelled = (
        "set single_writer=True, or --start 'reader:my own'; repair(url, start='head') as well"
    )
    assert spell_flags(text, options) == spelled
    assert spell_flags("copy it with start=url", options) == "copy it with --start URL"
    clone = [SimpleNamespace(name="clone", opts=["--clone"])]
    assert spell_flags("""use mode="clone", or mode='segments'""", clone) == (
        "use --clone, or mode='segments'"
    )
