"""The page of a stream in a real browser: light and dark, wide and narrow."""

import pytest
from browser_kit import running_page
from object_servers import ServerUnavailableError
from picture_kit import EVIL, make_shown

pytestmark = pytest.mark.slow
# The texts of the drawings that show, and the boxes that they take.
TEXTS = """[...document.querySelectorAll(".row > span")].map(text => {
    const box = text.getBoundingClientRect();
    return [text.textContent, box.left, box.top, box.right, box.bottom];
})"""
BARS = """[...document.querySelectorAll(".chart > i")].map(bar => {
    const box = bar.getBoundingClientRect();
    return [bar.title, box.width, box.height];
})"""


@pytest.fixture(scope="module")
def shown():
    return make_shown()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    try:
        with running_page(tmp_path_factory.mktemp("browser")) as page:
            yield page
    except ServerUnavailableError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def path(shown, tmp_path_factory):
    made = tmp_path_factory.mktemp("page") / "page.html"
    made.write_text(shown.picture().to_html(), encoding="utf-8")
    return made


def overlaps(texts):
    """Return the pairs of texts that cover each other by more than a pixel."""
    return [
        (one[0], other[0])
        for place, one in enumerate(texts)
        for other in texts[:place]
        if min(one[3], other[3]) - max(one[1], other[1]) > 1
        and min(one[4], other[4]) - max(one[2], other[2]) > 2
    ]


@pytest.mark.parametrize("width", [320, 719, 721, 1200])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_all_is_legible_at_any_width(page, path, width, dark):
    page.open(path, width=width, dark=dark)
    texts = page.evaluate(TEXTS)
    assert {"billing", "fraud-detector", "tag launch", "events held"} <= {text[0] for text in texts}
    assert not overlaps(texts)
    assert all(text[1] >= 0 and text[3] <= width for text in texts), texts
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    ink = page.evaluate("getComputedStyle(document.body).color")
    assert (ground, ink) == (
        ("rgb(13, 17, 23)", "rgb(230, 237, 243)")
        if dark
        else ("rgb(255, 255, 255)", "rgb(31, 35, 40)")
    )


def test_it_runs_nothing_and_asks_for_nothing(page, path):
    page.open(path)
    assert page.complaints() == []
    assert page.requests() == [path.as_uri()]
    assert page.evaluate("document.scripts.length") == 0
    assert EVIL in page.evaluate("document.body.innerText")


def test_bars_are_as_large_as_their_segments(page, path, shown):
    page.open(path)
    rows = shown.segments().read_all().to_pylist()
    bars = {}
    for title, wide, high in page.evaluate(BARS):  # what the head hides of one is apart
        bars[title] = (wide + bars.get(title, (0, 0))[0], high)
    sizes = {}
    for row in rows:
        (title,) = (each for each in bars if each.startswith(f"offsets {row['start']} to "))
        assert f"{row['rows']} events" in title
        sizes[row["start"]] = bars[title]
    first, last = max(rows, key=lambda row: row["bytes"]), min(rows, key=lambda row: row["bytes"])
    assert sizes[first["start"]][1] > sizes[last["start"]][1]
    whole = {row["start"]: row["rows"] for row in rows[1:]}
    across = {start: sizes[start][0] / whole[start] for start in whole if whole[start] > 3}
    assert max(across.values()) == pytest.approx(min(across.values()), rel=0.02)
