"""Properties that are no texts, and times after the year 9999, ended in untyped errors."""

import json
import uuid
from typing import Any

import pyarrow as pa
import pytest

from segstore_ds.errors import FormatError, SegstoreError
from segstore_ds.format.envelope import encode_envelope
from segstore_ds.format.root import encode_root
from segstore_ds.log.clock import BRIEF_CLOCK
from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.rescue import repair as repair_on
from segstore_ds.stream.rescue import verify as verify_on

FIRST = f"log/{0:020d}"
PROPERTIES = [
    "key_columns",
    "time_column",
    "publish",
    "latest",
    "replication",
    "retention",
    "upkeep",
    "later",
]


@pytest.fixture
def storage() -> Storage:
    """A stream of one commit."""
    made = open_storage(f"memory://{uuid.uuid4().hex}")
    create_on(made, pa.schema([("n", pa.int64())]))
    return made


def plant(storage: Storage, **fields: Any) -> None:
    """Change fields of the newest root, behind a right digest."""
    root = json.loads(encode_root(open_on(storage)._log.root))
    storage.put(FIRST, encode_envelope(json.dumps({**root, **fields}).encode()))


def assert_refused(storage: Storage) -> None:
    """An open fails with a typed error, and so does what looks at damage."""
    with pytest.raises(FormatError, match="field has an invalid value"):
        open_on(storage)
    assert not verify_on(storage).ok
    with pytest.raises(SegstoreError):
        repair_on(storage)


@pytest.mark.parametrize("value", [None, True, 7, 1.5, [], ["n"], {}, {"n": 1}], ids=repr)
@pytest.mark.parametrize("name", [*PROPERTIES, "later"])
def test_property_that_is_no_text_is_a_format_error(
    storage: Storage, name: str, value: Any
) -> None:
    """Also a property of a later version."""
    plant(storage, properties={name: value})
    assert_refused(storage)


@pytest.mark.parametrize("value", [2**63 - 1, 253_402_300_800_000_000])
def test_time_that_no_date_can_show_is_a_format_error(storage: Storage, value: int) -> None:
    """The last time is the end of the year 9999."""
    plant(storage, time_us=value)
    assert_refused(storage)


@pytest.mark.parametrize("text", ["[" * 100_000, "\ud800", "{", '{"followers":["' + "[" * 100_000])
@pytest.mark.parametrize("name", PROPERTIES)
def test_property_that_says_nothing_is_a_typed_error(
    storage: Storage, name: str, text: str
) -> None:
    """Whoever needs a property parses it; the stream can be read where none is needed."""
    plant(storage, properties={name: text})
    stream = open_on(storage, clock=BRIEF_CLOCK)
    for use in (
        lambda: stream.settings.retention,
        lambda: stream.settings.key_columns,
        lambda: stream.settings.time_column,
        lambda: stream.settings.upkeep,
        lambda: stream.settings.publish,
        lambda: stream.followers,
        stream.info,
        stream.metrics,
        stream.verify,
        lambda: repair_on(storage),
        lambda: stream.append(pa.table({"n": [1]})),
    ):
        try:
            use()
        except SegstoreError:
            continue
