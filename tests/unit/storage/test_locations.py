"""Every way to write a location, and what is refused."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore_ds.errors import InvalidInputError
from segstore_ds.storage import Location, resolve_location
from segstore_ds.storage.locations import shown

ACCEPTED = [
    ("/x", "file", "file:///x", "/x"),
    ("file:/x", "file", "file:///x", "/x"),
    ("file:///x", "file", "file:///x", "/x"),
    ("file://localhost/x", "file", "file:///x", "/x"),
    ("FILE:/x", "file", "file:///x", "/x"),
    ("//x//y/./z/", "file", "file:///x/y/z", "/x/y/z"),
    ("/x/../y", "file", "file:///y", "/y"),
    ("/", "file", "file://", "/"),
    ("/a b", "file", "file:///a b", "/a b"),
    ("file:/a%20b", "file", "file:///a b", "/a b"),
    ("/a%20b", "file", "file:///a%2520b", "/a%20b"),
    ("/a?b#c", "file", "file:///a%3Fb%23c", "/a?b#c"),
    ("/a,b", "file", "file:///a,b", "/a,b"),
    ("/ä", "file", "file:///ä", "/ä"),
    ("file:/%C3%A4", "file", "file:///ä", "/ä"),
    ("/a:b", "file", "file:///a:b", "/a:b"),
    ("/b\udcff", "file", "file:///b%FF", "/b\udcff"),
    ("file:/%ED%A0%80", "file", "file:///%ED%A0%80", "/\udced\udca0\udc80"),
    ("s3://b/x", "s3", "s3://b/x", "b/x"),
    ("s3a://b/x/", "s3", "s3://b/x", "b/x"),
    ("s3n://b//x", "s3", "s3://b/x", "b/x"),
    ("S3://b/X", "s3", "s3://b/X", "b/X"),
    ("s3://b", "s3", "s3://b", "b"),
    ("s3://b/a%20b", "s3", "s3://b/a%20b", "b/a%20b"),
    ("s3://b/x/../y", "s3", "s3://b/y", "b/y"),
    ("gs://b/x", "gs", "gs://b/x", "b/x"),
    ("gcs://b/x", "gs", "gs://b/x", "b/x"),
    ("abfs://c/x", "abfs", "abfs://c/x", "c/x"),
    ("az://c/x", "abfs", "abfs://c/x", "c/x"),
    (
        "abfss://c@acc.dfs.core.windows.net/x",
        "abfs",
        "abfs://c@acc.dfs.core.windows.net/x",
        "c/x",
    ),
    ("memory://x/y", "memory", "memory://x/y", "/x/y"),
    ("memory:///x", "memory", "memory://x", "/x"),
    ("memory://", "memory", "memory://", ""),
    ("sftp://user@host/x", "sftp", "sftp://user@host/x", "/x"),
    ("sftp://h:22/a@b", "sftp", "sftp://h:22/a@b", "/a@b"),
    ("s3://b/a:b@c", "s3", "s3://b/a:b@c", "b/a:b@c"),
]

REFUSED = [
    ("", "empty"),
    ("  ", "empty"),
    ("s3:/b/x", "no //"),
    (Path("s3://b/x"), "pathlib"),
    ("s3:b/x", "no //"),
    ("memory:/x", "no //"),
    ("nope://x", "unknown scheme"),
    ("C:\\x", "unknown scheme"),
    ("https://host/x", "unknown scheme"),
    ("simplecache::s3://b/x", "chained"),
    ("zip://x::s3://b/y.zip", "chained"),
    ('["/a", "/b"]', "list of paths"),
    ("/a,/b", "list of paths"),
    ("s3://a/x,s3://b/y", "list of paths"),
    ("s3://a/x, /y", "list of paths"),
    (["/a", "/b"], "list of paths"),
    (7, "not a string"),
    (b"/x", "not a string"),
    (None, "not a string"),
    ("~/x", "not expanded"),
    ("~user/x", "not expanded"),
    ("s3://b/x?versionId=1", "query"),
    ("s3://b/x#f", "query"),
    ("gs://b/x#1", "query"),
    ("file:///x?y", "query"),
    ("file:x", "absolute"),
    ("file:", "absolute"),
    ("file://host/x", "host"),
    ("/..", "leaves"),
    ("/x/../../y", "leaves"),
    ("s3://b/../c", "leaves"),
    ("s3://b/x/../../c", "leaves"),
    ("memory://x/../..", "leaves"),
    ("s3:///x", "no bucket"),
    ("s3://../x", "no bucket"),
    ("abfs://acc.dfs.core.windows.net/c/x", "no bucket"),
    ("s3://key:hidden@b/x", "user name"),
    ("s3://key@b/x", "user name"),
    ("s3://key:hid/den@b/x", "user name"),
    ("s3://host:9000/b/x", "a port"),
    ("abfs://c:hid/den@acc.dfs.core.windows.net/x", "user name"),
    ("sftp://user:hid/den@host/x", "password"),
    ("sftp://user:hidden@host/x", "password"),
    ("/x\n", "control"),
    ("file:/x%00", "control"),
    ("/b\ud800", "no name can have"),
    ("b\udfff", "no name can have"),
    ("file:///b\ud800", "no name can have"),
    ("s3://b/\ud800", "no name can have"),
    ("memory://b\udcff", "no name can have"),
    ("sftp://host/b\udcff", "no name can have"),
]


@pytest.mark.parametrize(("text", "scheme", "url", "path"), ACCEPTED)
def test_location_has_one_canonical_form(text, scheme, url, path):
    assert resolve_location(text) == Location(scheme, url, path)
    assert resolve_location(url) == Location(scheme, url, path)


@pytest.mark.parametrize(("location", "why"), REFUSED)
def test_ambiguous_location_is_refused_with_a_remedy(location, why):
    with pytest.raises(InvalidInputError, match=why) as caught:
        resolve_location(location)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "location",
    [
        "s3://key:hidden@b/x",
        "s3://key:a/hidden@b/x",
        "s3://key:a@hidden/b@b/x",
        "s3://key:a?hidden@b/x",
        "s3://key:a#hidden@b/x",
        "s3://hidden@b/x",
        "s3:/key:a/hidden@b/x",
        "nope://key:a/hidden@b/x",
        "simplecache::s3://key:a/hidden@b/x",
        "s3://key:a/hidden@b/x\n",
        "s3://a/x,s3://key:a/hidden@b/x",
        "gs://key:a/hidden@b/x",
        "abfs://c:a/hidden@acc.dfs.core.windows.net/x",
        "s3://b/x?X-Amz-Signature=hidden",
        "s3://b/x#token=hidden",
        "nope://b/x#token=hidden",
        "sftp://u:hidden@h/x",
        "sftp://u:a/hidden@h/x",
    ],
)
def test_refusal_shows_no_credentials(location):
    with pytest.raises(InvalidInputError) as caught:
        resolve_location(location)
    assert "hidden" not in str(caught.value)


def test_relative_path_starts_at_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve_location("x/y").path == f"{tmp_path}/x/y"
    assert resolve_location("./a:b").path == f"{tmp_path}/a:b"
    assert resolve_location("../x").path == f"{tmp_path.parent}/x"
    assert resolve_location(".").path == str(tmp_path)
    assert resolve_location(Path("x")).path == f"{tmp_path}/x"


@given(st.text(st.characters(exclude_categories=["Cc"]), max_size=30))
def test_canonical_form_of_any_path_is_stable(text):
    """Whatever is accepted resolves to itself, and names the file that the system would."""
    try:
        location = resolve_location("/" + text)
    except InvalidInputError:
        return
    assert resolve_location(location.url) == location
    assert location.path == "/" + os.path.normpath("/" + text).strip("/")


@pytest.mark.parametrize("location", ["sftp://h:22/a@b", "sftp://h/a:b@c", "s3://b/a:b@c"])
def test_what_may_follow_a_bucket_or_a_host_is_no_password(location):
    assert resolve_location(location).url == location


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("abfs://c@acc.dfs.core.windows.net/x", "abfs://c@acc.dfs.core.windows.net/x"),
        ("file:///a@b", "file:///a@b"),
        ("s3://b/mail@x", "s3://b/mail@x"),
        ("/plain/a:b@c", "/plain/a:b@c"),
    ],
)
def test_what_holds_no_password_is_shown_whole(text, seen):
    assert shown(text) == seen
