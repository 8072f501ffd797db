"""`to_html` and `_repr_html_`: what they say, and that data stays data."""

import re
import shutil
import uuid
from html.parser import HTMLParser

import pyarrow as pa
import pytest
from picture_kit import EVIL, make_shown

import segstore_ds as segstore
from benchmarks.workloads.table_status import fill
from segstore_ds.storage import open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.reads import at_root

VOID = {"meta", "br"}
ALLOWED = VOID | {
    *("html", "head", "title", "style", "body", "main", "section", "div", "h1", "h2", "p", "i"),
    *("dl", "dt", "dd", "table", "thead", "tbody", "tr", "th", "td", "span"),
    *("strong", "small"),
}


class Elements(HTMLParser):
    """Gathers the elements of a page, and checks that each one ends."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.values: list[str] = []
        self.texts: list[str] = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.values += [f"{name}={value}" for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def shown():
    return make_shown()


def test_a_page_tells_what_a_stream_holds(shown):
    page = Elements(shown.picture().to_html())
    for text in (
        f"version {shown.version}, as of {shown.metrics().measured:%Y-%m-%d %H:%M:%S} UTC",
        f"head {shown.head}",
        f"tail {shown.tail}",
        "billing",
        "tag launch",
        "What holds storage",
        "replaced by compactions",
        "arrow segments",
        "parquet segments",
    ):
        assert text in page.texts, text


def test_no_text_of_a_stream_becomes_markup(shown):
    for page in (shown.picture().to_html(), shown._repr_html_()):
        found = Elements(page)
        assert found.names <= ALLOWED
        assert not [value for value in found.values if value.startswith(("on", "href", "src"))]
        assert "<script" not in page
    assert EVIL in Elements(shown.picture().to_html()).texts


def test_a_page_asks_for_nothing(shown):
    page = shown.picture().to_html()
    assert "default-src 'none'" in page
    assert not re.search(r"https?://|url\(|@import|<link|<img|<script", page)


def test_pictures_have_texts_for_who_cannot_see_them(shown):
    page = shown.picture().to_html()
    labels = re.findall(r'role="img" aria-label="([^"]*)"', page)
    segments = f"{shown.tail - shown.head} events in 6 segments by offset"
    assert labels == [segments, "events held", "commits"]
    lag = f"{shown.tail - 40} events behind"
    assert any(text.startswith(lag) for text in Elements(page).texts)


@pytest.mark.parametrize("what", ["empty", "truncated", "sealed"])
def test_odd_streams_have_pictures(tmp_path, what):
    stream = segstore.create(tmp_path / "s", pa.schema([("n", pa.int64())]), upkeep=None)
    if what != "empty":
        stream.append(pa.table({"n": [1, 2, 3]}))
        stream.truncate("tail") if what == "truncated" else stream.seal()
    found = Elements(stream.picture().to_html())
    assert ("no events" in found.texts) == (what != "sealed")
    assert ("tail 3 (sealed)" in found.texts) == (what == "sealed")
    assert ("3 earlier events are dropped" in found.texts) == (what == "truncated")
    Elements(stream._repr_html_())


def test_a_notebook_shows_the_picture_and_moves_no_handle(shown):
    stale = at_root(segstore.Stream, shown._log.storage, shown._log.read_version(shown.version - 1))
    page = stale._repr_html_()
    assert f"version {shown.version}" in page
    assert stale.version == shown.version - 1
    assert "n: int64" in page
    assert len(page) < 30_000


def test_a_notebook_shows_why_a_stream_has_no_picture(tmp_path):
    stream = segstore.create(tmp_path / "<s>", pa.schema([("n", pa.int64())]), upkeep=None)
    shutil.rmtree(tmp_path / "<s>")
    page = stream._repr_html_()
    assert "SEG_" in page
    assert "&lt;s&gt;" in page
    Elements(page)


def test_a_page_of_100_000_segments_is_small():
    storage = open_storage(f"memory://{uuid.uuid4().hex}")
    create_on(storage, pa.schema([("n", pa.int64())]), upkeep=None)
    fill(storage, 100_000)
    stream = open_on(storage)
    before = sum(storage.stats.requests.values())
    page = stream.picture(storage=False).to_html()
    assert sum(storage.stats.requests.values()) - before < 30
    assert f"{stream.info()['segments']:,}, " in page
    assert len(page) < 70_000
