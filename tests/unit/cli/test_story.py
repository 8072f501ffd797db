"""Telling: what is printed is what runs; sizes and trees."""

import pytest

from segstore_ds.cli.story import Story, draw_tree
from segstore_ds.options.quantities import with_unit


def test_snippet_is_printed_and_then_run(capsys):
    story = Story(word="hello")
    story.run("""
        said = word.upper()
        print(said)
    """)
    assert capsys.readouterr().out == ("    said = word.upper()\n    print(said)\n\nHELLO\n")
    assert story.names["said"] == "HELLO"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (25_440_000, "25.4 MB"),
        (3 * 10**9, "3.0 GB"),
        (5 * 10**12, "5.0 TB"),
        (7 * 10**15, "7000.0 TB"),
    ],
)
def test_size_has_a_unit(size, text):
    assert with_unit(size) == text


def test_tree_shows_folders_and_sizes(tmp_path):
    inner = tmp_path / "stream" / "log"
    inner.mkdir(parents=True)
    (inner / "0").write_bytes(b"12345")
    lines = list(draw_tree(tmp_path / "stream"))
    assert [line.split() for line in lines] == [["stream/"], ["log/"], ["0", "5", "B"]]
