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


@pytest.mark.parametrize("path", LEAVING)
def test_metadata_names_nothing_outside_the_stream(path):
    with pytest.raises(CorruptionError, match="log/7"):
        names.check_segment_path(path, where="log/7")
    with pytest.raises(CorruptionError, match="log/7"):
        names.check_status_path(f"status/{path}", where="log/7")
    with pytest.raises(CorruptionError, match="log/7"):
        names.check_status_path(path, where="log/7")


@pytest.mark.parametrize(("token", "name"), [("..", "a"), ("a", ".."), ("a/b", "c"), ("a", "")])
def test_a_segment_path_is_never_built_from_bad_parts(token, name):
    with pytest.raises(InvalidInputError):
        names.build_segment_path(token, name)
