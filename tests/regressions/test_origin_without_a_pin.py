"""A crafted root named another stream as its origin, and its events were read and copied."""

import json
import pickle
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from segstore_ds.errors import FormatError, MissingObjectError, SegstoreError
from segstore_ds.format.envelope import encode_envelope
from segstore_ds.format.root import encode_root
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.rescue import salvage as salvage_on
from segstore_ds.stream.rescue import verify as verify_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

PARQUET = Layout(inline_bytes=0, segment_format="parquet")
SECRETS = pa.table({"n": [41, 42, 43]})


def empty() -> Storage:
    """An empty folder."""
    return open_storage(f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def victim() -> Stream:
    """A stream whose events are objects, with a clone."""
    stream = create_on(empty(), SECRETS.schema, upkeep=None)
    stream.append(SECRETS, layout=PARQUET)
    stream.copy_to(empty().url, copy_id="clone", mode="clone")
    return stream


def crafted(victim: Stream, pin: str) -> Storage:
    """A stream of somebody else, who has learnt what a victim's root says."""
    own = create_on(empty(), SECRETS.schema, upkeep=None)
    root: dict[str, Any] = json.loads(encode_root(own._log.root))
    theirs: dict[str, Any] = json.loads(encode_root(victim._log.root))
    for field in ("head", "tail", "next_segment", "lists", "parts", "entries"):
        root[field] = theirs[field]
    root["history"][0][4] = theirs["tail"]
    origin = {"url": victim.url, "pin": pin, "version": victim.version}
    root["origins"] = {victim._log.root.stream_id: origin}
    own._log.storage.put(f"log/{0:020d}", encode_envelope(json.dumps(root).encode()))
    return own._log.storage


READS: dict[str, Callable[[Stream], object]] = {
    "read": lambda stream: stream.read().read_all(),
    "unpickled": lambda stream: pickle.loads(pickle.dumps(stream)).read().read_all(),  # noqa: S301
    "filter": lambda stream: stream.scan(filters=[["n", ">", 41]]).count(),
    "files": lambda stream: stream.scan().files(),
    "materialize": lambda stream: stream.materialize(),
    "copy": lambda stream: stream.copy_to(empty().url, copy_id="c"),
    "events": lambda stream: stream.copy_to(empty().url, copy_id="c", mode="events"),
    "redact": lambda stream: stream.redact([["n", "=", 41]], columns=["n"]),
    "salvage": lambda stream: salvage_on(stream._log.storage, empty()),
}


@pytest.mark.parametrize("pin", ["clone", "none"])
@pytest.mark.parametrize("name", READS)
def test_origin_that_pinned_no_such_clone_is_not_read(victim: Stream, name: str, pin: str) -> None:
    """Neither its events nor its files: the pin that it holds is of another clone, or none."""
    storage = crafted(victim, pin)
    with pytest.raises(SegstoreError) as caught:
        READS[name](open_on(storage))
    told = f"{caught.value} {caught.value.__cause__}"
    assert "without a pin of this stream" in told or name == "salvage"
    assert not list(storage.list("segments"))


def test_verify_names_what_no_origin_gives(victim: Stream) -> None:
    """It reads nothing of the other stream either."""
    report = verify_on(crafted(victim, "clone"))
    assert not report.ok
    with pytest.raises(FormatError):
        report.check()


def test_clone_is_not_read_once_its_pin_is_released(victim: Stream) -> None:
    url = victim.refresh().pins["clone"].url
    assert open_on(open_storage(url)).read(read_cache_bytes=0).read_all().num_rows == 3
    victim.pins.release("clone")
    victim._log.write_hint(victim._log.root)
    with pytest.raises(MissingObjectError, match="without a pin of this stream"):
        open_on(open_storage(url)).read(read_cache_bytes=0).read_all()
