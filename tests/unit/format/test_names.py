"""Names are built and parsed in one place, and metadata can name nothing outside the stream."""

import pytest

from segstore_ds.errors import CorruptionError, InvalidInputError
from segstore_ds.format import names

LEAVING = [
    "",
    "/",
    "..",
    "../x",
    "a/../b",
    "a/..",
    "a/.",
    "a//b",
    "/a/b",
    "a/b/c",
    "a\\b",
    "a/b\x00",
    "a/b\n",
    "a/.hidden",
    "_a/b",
    "a/_b",
    "s3://bucket/x",
    "a:b/c",
    "a/" + "b" * 102,
    "ä/b",
    "a/b ",
    "%2e%2e/x",
]


@pytest.mark.parametrize("number", [0, 1, 41, 10**18 - 1])
def test_a_log_name_parses_back(number):
    name = names.build_log_name(number)
    assert len(name) == 20
    assert names.parse_log_name(name) == number


def test_log_names_sort_as_their_numbers():
    numbers = [0, 9, 10, 99, 100, 10**17]
    assert sorted(map(names.build_log_name, reversed(numbers))) == [
        names.build_log_name(number) for number in numbers
    ]


@pytest.mark.parametrize("number", [-1, 10**18])
def test_a_number_out_of_range_has_no_name(number):
    with pytest.raises(InvalidInputError, match=f"number={number}"):
        names.build_log_name(number)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "41",
        "0" * 19,
        "0" * 21,
        "0" * 19 + "a",
        "+" + "0" * 19,
        "9" * 20,
        "0" * 20 + "\n",
        "²" * 20,
    ],
)
def test_other_files_have_no_number(name):
    assert names.parse_log_name(name) is None


def test_a_token_carries_the_version_it_was_planned_on():
    token = names.build_token(41, "0123456789ab")
    assert names.parse_token_version(token) == 41
    for other in ("copy-17", "0" * 20, "0" * 20 + "-xyz", token + "0"):
        assert names.parse_token_version(other) is None
    for nonce in ("", "0123", "0123456789AB", "0123456789ab0", "../456789abc"):
        with pytest.raises(InvalidInputError):
            names.build_token(41, nonce)


@pytest.mark.parametrize("token", ["", "-a", "_a", ".a", "a/b", "a" * 102, "a\n"])
def test_a_malformed_token(token):
    with pytest.raises(InvalidInputError):
        names.build_segment_path(token, "a")


def test_a_segment_path():
    path = names.build_segment_path("00-ab", "0-x1-2.arrow")
    assert names.check_segment_path(path, where="root") == path
    assert names.segment_token(path) == "00-ab"
    assert names.segment_object(path) == "segments/00-ab/0-x1-2.arrow"


@pytest.mark.parametrize("path", LEAVING)
def test_metadata_names_nothing_outside_the_stream(path):
    with pytest.raises(CorruptionError, match="log/7"):
        names.check_segment_path(path, where="log/7")
    with pytest.raises(CorruptionError, match="log/7"):
        names.check_status_path(f"status/{path}", where="log/7")
    with pytest.raises(CorruptionError, match="log/7"):
        names.check_status_path(path, where="log/7")


@pytest.mark.parametrize("value", [None, 7, b"a/b", ["a/b"]])
def test_metadata_that_is_no_text_names_nothing(value):
    with pytest.raises(CorruptionError):
        names.check_segment_path(value, where="x")
    with pytest.raises(CorruptionError):
        names.check_status_path(value, where="x")


@pytest.mark.parametrize(("token", "name"), [("..", "a"), ("a", ".."), ("a/b", "c"), ("a", "")])
def test_a_segment_path_is_never_built_from_bad_parts(token, name):
    with pytest.raises(InvalidInputError):
        names.build_segment_path(token, name)


def test_a_status_path():
    path = names.build_status_path(7, "part", "a" * 32)
    assert path == f"status/{7:020d}-part-{'a' * 32}"
    assert names.parse_status_version(path) == 7
    assert names.parse_status_version("status/x") is None
    with pytest.raises(CorruptionError):
        names.build_status_path(7, "part", "A" * 32)
