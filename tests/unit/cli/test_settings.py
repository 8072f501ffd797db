"""Where storage options come from, and that no message repeats them."""

import pytest
import typer

from segstore_ds.cli.arguments import Run


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
