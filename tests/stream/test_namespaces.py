"""Settings and published tables: values of a stream with methods that change them."""

import datetime as dt

import pyarrow as pa
import pytest

import segstore_ds as segstore
from segstore_ds.errors import InvalidInputError


@pytest.fixture
def stream(tmp_path):
    made = segstore.create(
        tmp_path / "s", pa.schema([("n", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
    )
    made.append([{"n": n, "ts": dt.datetime.now(dt.UTC)} for n in range(10)])
    return made


def test_published_tables_are_a_mapping_by_format(stream):
    assert (dict(stream.published), stream.published.get("delta")) == ({}, None)
    shown = stream.publish("delta", settle=True)
    assert dict(stream.published) == {"delta": shown}
    assert list(segstore.open(stream.url).published) == ["delta"]
    with pytest.raises(KeyError):
        stream.published["iceberg"]
    for call in (stream.published.get, stream.published.remove):
        with pytest.raises(InvalidInputError, match="lance"):
            call("lance")
    assert stream.published.remove("delta") > 0
    assert len(stream.published) == 0


def test_settings_change_in_one_commit(stream):
    before = stream.version
    stream.settings.update(
        key_columns=["n"],
        time_column="ts",
        retention={"max_event_age": "7d"},
        upkeep=segstore.UpkeepPolicy(keep_versions=7),
        publish=["delta"],
    )
    found = stream.settings
    assert (found.key_columns, found.time_column, found.publish) == (("n",), "ts", ("delta",))
    assert found.retention.max_event_age == 7 * 86400
    assert found.upkeep.keep_versions == 7
    assert stream.version == before + 1
    stream.settings.update(retention=None, upkeep=None)
    assert (stream.settings.retention, stream.settings.upkeep) == (None, None)
    assert stream.settings.key_columns == ("n",)  # stays
    stream.settings.update(key_columns=None, time_column=None, publish=[])
    assert (stream.settings.key_columns, stream.settings.time_column) == ((), None)
    version = stream.version
    stream.settings.update()
    stream.settings.update(key_columns=[])
    assert stream.version == version


@pytest.mark.parametrize(
    "wrong",
    [
        {"key_columns": ["x"]},
        {"time_column": "x"},
        {"retention": {"max_events": 3}},
        {"retention": {"max_event_age": "7d"}, "time_column": None},
        {"upkeep": "daily"},
        {"publish": ["hudi"]},
    ],
)
def test_wrong_settings_change_nothing(stream, wrong):
    version = stream.version
    with pytest.raises(InvalidInputError):
        stream.settings.update(**{"key_columns": ["n"], **wrong})
    assert stream.refresh().version == version
    with pytest.raises(TypeError):
        stream.settings.update(colour="red")
