"""A stream with something of everything that pictures show, and the picture of the documents.

`python tests/picture_kit.py` draws that picture again.
"""

import datetime as dt
from pathlib import Path
from tempfile import TemporaryDirectory

from browser_kit import running_page
from stream_kit import DAY, HOUR, STAGED, make_stream, numbers, wait

import segstore_ds as segstore
from segstore_ds.observe.description import Bar, Description
from segstore_ds.observe.figures import FollowerFigures, Lag, Metrics, ReaderFigures
from segstore_ds.observe.page import build_cell

EVIL = "<script>alert(1)</script>&\"'$x^"
DRAWN = Path(__file__).parents[1] / "segstore_ds/docs/stream.svg"
# An image of what a browser laid out, which follows the light or dark of the page around it.
_IMAGE = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {height}">
<foreignObject width="760" height="{height}">
<div xmlns="http://www.w3.org/1999/xhtml" style="font:14px/1.45 system-ui,sans-serif">
{picture}
</div>
</foreignObject>
</svg>
"""
NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
PARQUET = segstore.Layout(inline_bytes=0, segment_format="parquet")


def make_shown() -> segstore.Stream:
    """Return a stream with both formats, a hidden row, readers, tags and names that are markup."""
    stream, storage = make_stream(0)
    for count in range(8):
        stream.append(numbers(0, 10 + count % 2), layout=STAGED)
    wait(storage, 5 * DAY)
    stream.compact(layout=PARQUET)
    for size in (30, 5, 12, 50):
        wait(storage, HOUR)
        stream.append(numbers(0, size), layout=STAGED)
    stream.append(numbers(0, 3), writer_id=EVIL, batch_id=1)
    stream.truncate(20)
    stream.readers.register("billing", start=40, owner=EVIL)
    stream.readers.register("fraud-detector", start="tail")
    stream.tags.set("launch", 60)
    stream.tags.set("before-launch", 58)
    stream.tags.set("newest")
    return stream


def draw_document() -> None:
    """Draw the picture of the documents: a stream with compacted history and a busy tail."""
    sizes = [(0, 400_000, 2_900_000), (400_000, 900_000, 3_600_000)]
    sizes += [(start, start + 60_000, 690_000) for start in range(900_000, 1_140_000, 60_000)]
    sizes += [(start, start + 9_000, 104_000) for start in range(1_140_000, 1_194_000, 9_000)]
    bars = tuple(
        Bar(start, end, 1, size, "parquet" if end <= 900_000 else "arrow")
        for start, end, size in sizes
    )
    tail, head = bars[-1].end, 120_000
    readers = (
        ReaderFigures("billing", "", 1_140_000, Lag(54_000, 624_000, 95.0), 0, NOON, True),
        ReaderFigures("warehouse", "", 700_000, Lag(494_000, 4_824_000, 8100.0), 0, NOON, True),
    )
    figures = Metrics(
        url="s3://events/clicks",
        stream_id="0" * 32,
        measured=NOON,
        version=412,
        generation=0,
        last_commit=NOON,
        last_append=NOON,
        events=tail - head,
        head=head,
        tail=tail,
        sealed=False,
        segments=len(bars),
        bytes=sum(bar.bytes for bar in bars),
        small_segments=6,
        small_bytes=624_000,
        versions=24,
        retired=0,
        last_upkeep=NOON,
        readers=readers,
        followers=(FollowerFigures("s3://copies/clicks", 412, 0, 0),),
        published=(),
        storage=None,
    )
    tags = ((300_000, "launch"), (960_000, "model-v2"))
    found = Description(figures, {}, bars, (), tags, len(tags), (), ())
    with TemporaryDirectory() as folder, running_page(Path(folder)) as page:
        cell = Path(folder) / "cell.html"
        cell.write_text(build_cell(figures.url, lambda: found), encoding="utf-8")
        page.open(cell, width=760)
        page.evaluate("document.body.style = 'margin: 0; font: 14px/1.45 system-ui'")
        height = page.evaluate("document.querySelector('.segstore').offsetHeight + 4")
        xml = "new XMLSerializer().serializeToString(document.querySelector('.segstore'))"
        DRAWN.write_text(_IMAGE.format(height=height, picture=page.evaluate(xml)))


if __name__ == "__main__":
    draw_document()
