"""Write the worked examples and test vectors of FORMAT.md, section 10.

::

    PYTHONPATH=. .venv/bin/python tests/golden/make_examples.py

Everything is computed by the code that writes streams, from fixed values. `test_examples` compares
the page with what this module computes, and reads the page with a reader that shares no code.
"""

import json
import zlib
from pathlib import Path

import pyarrow as pa
import zstandard

from segstore_ds.format.arrow.frame import encode_frame
from segstore_ds.format.arrow.segment import ArrowEncoder
from segstore_ds.format.batch_fingerprint import batch_facts, encode_fingerprint
from segstore_ds.format.envelope import digest_of, encode_envelope
from segstore_ds.format.names import Hint, build_hint
from segstore_ds.format.root import Epoch, HistoryRow, Root, SegmentEntry, encode_root
from segstore_ds.format.schema.codec import encode_schema

PAGE = Path(__file__).parents[2] / "segstore_ds/format/FORMAT.md"
TITLE = "## 10. Worked examples and test vectors\n"
NEXT = "\n## 11. "
SCHEMA = pa.schema([("n", pa.int64())])
EVENTS = pa.record_batch([pa.array([7, None], pa.int64())], schema=SCHEMA)
PATH = "00000000000000000000-0123456789ab/0-0-0.arrow"
STREAM, CREATED, APPENDED = (digit * 32 for digit in "5ca")
LONG = b"a" * 2000
TIME_US = 1_700_000_000_000_000
WIDTH = 100  # of the lines of a body on the page


def segment(footer: bytes | None = None) -> tuple[bytes, SegmentEntry]:
    """Return an Arrow segment of two events, and its entry.

    `footer` is the compressed footer to use: versions of zstd compress the same JSON differently.
    """
    writer = ArrowEncoder()
    body = writer.start()
    frame = encode_frame(EVENTS, compression="none", compression_level=None, stats_columns=("n",))
    body += b"".join(bytes(buffer) for buffer in writer.add(frame))
    end, summary = writer.finish()
    if footer is not None:
        raw = zstandard.decompress(end[:-40])
        if zstandard.decompress(footer) != raw:
            raise ValueError("footer of the page holds another index")
        facts = len(body).to_bytes(8, "little")
        for number in (len(footer), len(raw), zlib.crc32(footer), 1, 0):
            facts += number.to_bytes(4, "little")
        end = footer + facts + zlib.crc32(facts).to_bytes(4, "little") + b"SEGATAIL"
    stats = '{"int:n":[7,7,1]}'
    size = len(body) + len(end)
    entry = SegmentEntry(0, PATH, summary.rows, size, len(end), zlib.crc32(end), "arrow", stats)
    return body + end, entry


def commit_file(entry: SegmentEntry) -> bytes:
    """Return the file of version 1, which appended the segment, as a plain envelope."""
    rows = (
        HistoryRow(0, TIME_US, "create", 0, 0, requests=1, client="ex/1", transaction=CREATED),
        HistoryRow(
            version=1,
            time_us=TIME_US + 5,
            operation="append",
            head=0,
            tail=2,
            rows=2,
            segments=1,
            bytes=entry.bytes,
            client="ex/1",
            requests=2,
            request_bytes=entry.bytes,
            transaction=APPENDED,
        ),
    )
    root = Root(
        stream_id=STREAM,
        version=1,
        transaction=APPENDED,
        parent=CREATED,
        time_us=TIME_US + 5,
        operation="append",
        client="ex/1",
        epochs=(Epoch(0, 0, encode_schema(SCHEMA), None),),
        tail=2,
        next_segment=1,
        entries=(entry,),
        history=rows,
    )
    body = encode_root(root)
    header = b"plain %d %d" % (len(body), len(body))
    return b"v1\n%s %s\n%s" % (header, digest_of(header, body).encode(), body)


def batch_fingerprint() -> str:
    """Return the fingerprint of the batch of the segment's two events."""
    return encode_fingerprint(batch_facts(EVENTS, ["n"]))


def dump(data: bytes) -> str:
    """Return a hex dump: offset, and 32 bytes in two groups."""
    groups = [data[start : start + 16].hex() for start in range(0, len(data), 16)]
    lines = [f"{16 * n:08x}  {' '.join(groups[n : n + 2])}" for n in range(0, len(groups), 2)]
    return "```hex\n" + "\n".join(lines) + "\n```\n"


def undump(text: str) -> bytes:
    """Return the bytes of a hex dump."""
    return bytes.fromhex("".join(line[10:] for line in text.splitlines()))


def show(envelope: bytes) -> str:
    """Return a plain envelope as text, its body broken into lines after commas."""
    version, header, body = envelope.decode().split("\n", 2)
    lines = [version, header]
    while body:
        cut = body.rfind(",", 0, WIDTH) + 1 or WIDTH
        lines.append(body[:cut])
        body = body[cut:]
    return "```text\n" + "\n".join(lines) + "\n```\n"


def unshow(text: str) -> bytes:
    """Return the envelope that `show` gave."""
    version, header, body = text.split("\n", 2)
    return f"{version}\n{header}\n{body.replace(chr(10), '')}".encode()


def marked(envelope: bytes) -> str:
    """Return an envelope as one line of text."""
    return envelope.decode().replace("\n", "⏎")


def compressed(stored: bytes | None = None) -> bytes:
    """Return the envelope of 2,000 times the letter a; `stored` as `footer` in `segment`."""
    if stored is None:
        return encode_envelope(LONG)
    if zstandard.decompress(stored) != LONG:
        raise ValueError("envelope of the page holds another body")
    header = b"zstd %d %d" % (len(stored), len(LONG))
    return b"v1\n%s %s\n%s" % (header, digest_of(header, stored).encode(), stored)


def render(footer: bytes | None = None, stored: bytes | None = None) -> str:
    """Return section 10 of the page, with what zstd stored there before, if it is given."""
    data, entry = segment(footer)
    place = len(data) - entry.footer_bytes
    frame = f"64 to {place - 1} are the frame and {place} to {len(data) - 41} the footer"
    index = zstandard.decompress(data[place:-40]).decode()
    stats = json.dumps({"rows": 2, "nulls": 1, "minimum": 7, "maximum": 7})
    hint = build_hint(Hint(41, 0, "f00", "b42")).decode()
    return f"""{TITLE}
`tests/golden/make_examples.py` writes this section.

### 10.1 A segment

`segments/{PATH}`: two events of the schema `n: int64`, 7 and null, in one
frame that is not compressed. Of {len(data)} bytes {frame}, which unpacks to

```json
{index}
```

{dump(data)}
### 10.2 A commit file

`log/00000000000000000001`, the commit that appended it. The envelope is `plain`; writers compress
bodies above 1 KiB. The body has no line breaks.

{show(commit_file(entry))}
### 10.3 Vectors

| what | value |
|---|---|
| envelope of no bytes | `{marked(encode_envelope(b""))}` (⏎ is the byte 0x0a) |
| envelope of `{{}}` | `{marked(encode_envelope(b"{}"))}` |
| hint of version 41, generation 0, stream `f00`, transaction `b42` | `{hint}` |
| batch fingerprint (3.4) of the two events, `{stats}` | `{batch_fingerprint()}` |

The envelope of 2,000 times the letter a, compressed:

{dump(compressed(stored))}"""


def main() -> None:
    """Write section 10 of the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(TITLE)
    _, title, behind = rest.partition(NEXT)
    PAGE.write_text(before + render() + title + behind, encoding="utf-8")


if __name__ == "__main__":
    main()
