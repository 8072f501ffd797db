"""The one table of options: parsing, errors, the tables of docs/options.md."""

import pytest

from segstore_ds.errors import InvalidInputError
from segstore_ds.options.table import BY_NAME, READ, STREAM_READ, STREAM_WRITE, WRITE, parse_options


def test_defaults_are_filled_in() -> None:
    """Every option of the scope has a value, those of the other scope are absent."""
    read, write = parse_options({}, READ), parse_options({}, WRITE)
    assert read["startCut"] == "head"
    assert read["partitionBytes"] == 128 << 20
    assert "compression" not in read
    assert write["createIfMissing"] is True
    assert "startCut" not in write


@pytest.mark.parametrize(
    ("name", "given", "parsed"),
    [
        ("PARTITIONBYTES", "64m", 64 << 20),
        ("partitionBytes", "64MiB", 64 << 20),
        ("partitionbytes", 1024, 1024),
        ("minPartitions", "3", 3),
        ("failOnDataLoss", "FALSE", False),
        ("columns", "a, b", ("a", "b")),
        ("columns", '["a, b", "c"]', ("a, b", "c")),
        ("columns", ["x"], ("x",)),
        ("storageOptions", '{"key": "env:K"}', {"key": "env:K"}),
        ("startCut", 17, "17"),
    ],
)
def test_value_is_typed(name: str, given: object, parsed: object) -> None:
    """Names are case-blind; text and typed values give the same."""
    assert parse_options({name: given}, READ)[BY_NAME[name.lower()].name] == parsed


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("partitionBytes", "0"),
        ("partitionBytes", "-1"),
        ("partitionBytes", "1.5m"),
        ("minPartitions", "3k"),
        ("minPartitions", "many"),
        ("failOnDataLoss", "yes"),
        ("columns", ""),
        ("columns", "a,,b"),
        ("columns", "a,a"),
        ("columns", "[1]"),
        ("columns", "[oops"),
        ("storageOptions", "[]"),
        ("startCut", ""),
        ("partitionBytes", "9" * 30),
    ],
)
def test_wrong_value_error_names_the_expected_value(name: str, given: object) -> None:
    """A value of the wrong kind or out of range names the option and the remedy."""
    with pytest.raises(InvalidInputError, match=f"option='{name}'.*give "):
        parse_options({name: given}, READ)


def test_age_has_a_unit() -> None:
    """A number alone may be meant as milliseconds."""
    given = {"maxTriggerDelay": "90s"}
    assert parse_options({}, STREAM_READ)["maxTriggerDelay"] == 900
    assert parse_options(given, STREAM_READ)["maxTriggerDelay"] == 90
    for wrong in ("900", 900, "15 minutes", True):
        with pytest.raises(InvalidInputError, match=r"option='maxTriggerDelay'.*give an age"):
            parse_options({"maxTriggerDelay": wrong}, STREAM_READ)


def test_streams_take_what_batches_take_but_for_some() -> None:
    """A stream read has limits, a stream write is numbered by Spark."""
    assert parse_options({"maxrowspertrigger": "7"}, STREAM_READ)["maxRowsPerTrigger"] == 7
    batches = set(parse_options({}, READ)) - set(parse_options({}, STREAM_READ))
    planning = {"metadata", "compactRows", "compactBytes", "compactMode"}
    assert batches == {"versionAsOf", "timestampAsOf"} | planning
    batches = set(parse_options({}, WRITE)) - set(parse_options({}, STREAM_WRITE))
    copying = {"operation", "copyFrom", "copyMode", "copyId", "seal"}
    assert batches == {"batchId", "expectedTail", "expectedVersion"} | copying
    with pytest.raises(InvalidInputError, match="belongs to a stream read, not to a read"):
        parse_options({"maxRowsPerTrigger": "7"}, READ)
    with pytest.raises(InvalidInputError, match="belongs to a write, not to a stream write"):
        parse_options({"batchId": "7"}, STREAM_WRITE)
    assert "maxRowsPerTrigger" in parse_options({"columns": "a"}, READ, STREAM_READ)


@pytest.mark.parametrize(
    ("peer", "ours", "scope"),
    [
        ("startingOffsets", "startCut", READ),
        ("startingVersion", "startCut", READ),
        ("endingOffsets", "endCut", READ),
        ("txnAppId", "writerId", WRITE),
        ("txnVersion", "batchId", WRITE),
        ("maxRecordsPerFile", "segmentBytes", WRITE),
        ("maxFilesPerTrigger", "maxBytesPerTrigger", STREAM_READ),
        ("maxOffsetsPerTrigger", "maxRowsPerTrigger", STREAM_READ),
        ("minOffsetsPerTrigger", "minRowsPerTrigger", STREAM_READ),
        ("rewrite-target-file-size-bytes", "Stream.compact", WRITE),
    ],
)
def test_error_for_another_systems_option_names_ours(peer: str, ours: str, scope: str) -> None:
    """The error for an option of Delta, Kafka or Iceberg names ours."""
    with pytest.raises(InvalidInputError, match=f"use {ours}"):
        parse_options({peer: "1"}, scope)


@pytest.mark.parametrize(
    ("peer", "told", "scope"),
    [
        ("readChangeFeed", "its own feed of changes", READ),
        ("readChangeData", "its own feed of changes", STREAM_READ),
        ("partitionOverwriteMode", "replaces all events", WRITE),
        ("replaceWhere", "can't replace some events", WRITE),
    ],
)
def test_error_for_what_has_no_option_says_what_to_do(peer: str, told: str, scope: str) -> None:
    """A near name would be an option that does something else."""
    with pytest.raises(InvalidInputError, match=told):
        parse_options({peer: "true"}, scope)


def test_sparks_own_keys_are_passed_over() -> None:
    """What Spark puts among the options by itself is no error."""
    keys = {"provider": "segstore", "option.path": "x", "queryName": "q", "checkpointLocation": "c"}
    assert parse_options({**keys, "path": "p"}, WRITE)["path"] == "p"


def test_secret_of_malformed_storage_options_is_not_shown() -> None:
    """A JSON slip does not print what may be a secret."""
    with pytest.raises(InvalidInputError) as caught:
        parse_options({"storageOptions": '{"secret": "hunter2"'}, READ)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("name", ["compressionLevel", "segmentRows", "partitionRows"])
def test_argument_of_python_alone_is_no_option(name: str) -> None:
    """The error says where it belongs."""
    for scope in (READ, WRITE, STREAM_READ, STREAM_WRITE):
        with pytest.raises(InvalidInputError, match="belongs to a call from Python"):
            parse_options({name: "1"}, scope)


@pytest.mark.parametrize(
    "name", ["frameBytes", "cacheBufferBytes", "cacheBuffers", "maxSegmentsPerTrigger"]
)
def test_size_that_is_a_constant_is_no_option(name: str) -> None:
    """It is as unknown as any other word."""
    with pytest.raises(InvalidInputError, match="unknown option"):
        parse_options({name: "1m"}, WRITE, STREAM_READ)
