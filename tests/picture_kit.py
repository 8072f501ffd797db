"""A stream with something of everything that pictures show."""

import datetime as dt

from stream_kit import DAY, HOUR, STAGED, make_stream, numbers, wait

import segstore_ds as segstore

EVIL = "<script>alert(1)</script>&\"'$x^"
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
