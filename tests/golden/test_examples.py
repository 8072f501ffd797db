"""The worked examples of FORMAT.md: what the code writes, and what a reader makes of them."""

import json
import re
from pathlib import Path

import golden_reader
import make_examples
import pyarrow as pa

from segstore_ds.format.envelope import decode_envelope
from segstore_ds.format.root import decode_root

PAGE = make_examples.PAGE.read_text(encoding="utf-8")
SEGMENT, LONG = map(make_examples.undump, re.findall(r"```hex\n(.*?)```", PAGE, re.DOTALL))
COMMIT = make_examples.unshow(re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)[0])
FOOTER, STORED = SEGMENT[384:-40], LONG.split(b"\n", 2)[2]


def test_page_is_what_the_code_writes():
    """Of zstd frames only the content counts: another version compresses it differently."""
    assert make_examples.commit_file(make_examples.segment(FOOTER)[1]) == COMMIT
    _, title, rest = PAGE.partition(make_examples.TITLE)
    assert title + rest.partition(make_examples.NEXT)[0] == make_examples.render(FOOTER, STORED)


def test_reader_that_knows_only_the_format_reads_the_examples(tmp_path: Path):
    for name, data in (
        (f"segments/{make_examples.PATH}", SEGMENT),
        ("log/00000000000000000001", COMMIT),
    ):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(data)
    head, tail, table = golden_reader.read_stream(tmp_path)
    assert (head, tail, table.to_pydict()) == (0, 2, {"n": [7, None]})
    root = decode_root(decode_envelope(COMMIT, where="page"), where="page")
    assert (root.version, root.entries[0].bytes) == (1, len(SEGMENT))


def test_vectors_decode_to_what_the_page_says():
    for text, body in re.findall(r"\| envelope of (.+) \| `(.+?)`", PAGE):
        raw = body.replace("⏎", "\n").encode()
        expected = b"" if text == "no bytes" else text.strip("`").encode()
        assert golden_reader.envelope(raw) == decode_envelope(raw, where="page") == expected
    assert golden_reader.envelope(LONG) == decode_envelope(LONG, where="page") == b"a" * 2000


def test_fingerprints_on_the_page_are_those_of_a_reader():
    vectors = re.findall(r"^\| `(\[.*\])` \| `([0-9a-f]{16})` \|$", PAGE, re.MULTILINE)
    assert len(vectors) == 3
    for text, expected in vectors:
        assert golden_reader.blake(text.encode())[:16] == expected
        schema = pa.schema([field_of(field) for field in json.loads(text)])
        assert golden_reader.fingerprint(schema) == expected


def field_of(value: dict) -> pa.Field:
    """Return the field that canonical JSON describes; only the types on the page."""
    kind = value["type"]
    named = {"int64": pa.int64(), "int32": pa.int32(), "string": pa.string()}
    named["timestamp[us, tz=UTC]"] = pa.timestamp("us", "UTC")
    data_type = pa.list_(field_of(kind["list"][0])) if isinstance(kind, dict) else named[kind]
    pairs = {
        key.encode("latin-1"): item.encode("latin-1") for key, item in value["metadata"].items()
    }
    return pa.field(value["name"], data_type, nullable=value["nullable"], metadata=pairs or None)


def test_reader_of_golden_streams_is_short_and_shares_no_code():
    """FORMAT.md names it as the reader that a stranger can write."""
    text = Path(golden_reader.__file__).read_text(encoding="utf-8")
    imported = set(re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE))
    standard = {"base64", "hashlib", "itertools", "json", "re", "struct", "zlib", "pathlib"}
    standard |= {"typing", "urllib"}
    assert imported - standard == {"pyarrow", "zstandard"}
    assert sum(bool(line.strip()) for line in text.splitlines()) < 200
