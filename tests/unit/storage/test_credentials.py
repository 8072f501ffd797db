"""Choosing storage options, and keeping their values out of every text."""

import traceback
from urllib.parse import quote

import pytest

from segstore_ds.errors import InvalidInputError
from segstore_ds.storage import resolve_location, resolve_storage_options
from segstore_ds.storage.credentials import Mask

S3 = resolve_location("s3://bucket/a/b")


def resolve(options, location=S3):
    return resolve_storage_options(options, location)


def test_longest_prefix_wins():
    options = {
        "s3://": {"key": "all"},
        "s3a://bucket/": {"key": "bucket"},
        "s3://bucket/a/b": {"key": "folder"},
        "s3://bucket/a/b/c": {"key": "deeper"},
        "gs://": {"token": "other"},
    }
    assert resolve(options) == {"key": "folder"}
    assert resolve(options, resolve_location("s3://bucket/a")) == {"key": "bucket"}
    assert resolve(options, resolve_location("s3://bucket2/a")) == {"key": "all"}
    assert resolve(options, resolve_location("gcs://b/x")) == {"token": "other"}
    assert resolve(options, resolve_location("/x")) == {}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"s3://": {}, "key": "k"}, "mix"),
        ({"s3://": "k"}, "not a mapping"),
        ("key=k", "not a mapping"),
        ({7: "k"}, "not a string"),
        ({"s3:/b": {}, "key": "k"}, None),
    ],
)
def test_malformed_options_are_refused(options, why):
    if why is None:
        assert resolve(options) == options
        return
    with pytest.raises(InvalidInputError, match=why):
        resolve(options)


def test_environment_is_read(monkeypatch):
    monkeypatch.setenv("TEST_SECRET", "hidden")
    options = {"secret": "env:TEST_SECRET", "client_kwargs": {"x": "env:TEST_SECRET"}}
    assert resolve(options) == {"secret": "hidden", "client_kwargs": {"x": "hidden"}}
    assert options == {
        "secret": "env:TEST_SECRET",
        "client_kwargs": {"x": "env:TEST_SECRET"},
    }


@pytest.mark.parametrize("value", ["env:TEST_NOT_SET", "env:"])
def test_unset_variable_is_named(value, monkeypatch):
    monkeypatch.delenv("TEST_NOT_SET", raising=False)
    with pytest.raises(InvalidInputError) as caught:
        resolve({"client_kwargs": {"secret": value}})
    assert "option='client_kwargs.secret'" in str(caught.value)
    assert repr(value.removeprefix("env:")) in str(caught.value)


SECRETS = [
    "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY=",
    'it\'s "quoted" \\ and\nbroken',
    "ab",
    "ünï",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_secret_is_taken_out_in_every_form(secret):
    mask = Mask({"client_kwargs": {"aws_secret_access_key": secret}})
    for form in (secret, quote(secret, safe=""), quote(secret), repr(secret), str({"k": secret})):
        text = mask.apply(f"request: {form} failed")
        assert secret not in text
        assert form.strip("'\"") not in text
        assert text.startswith("request: ")


def test_parts_of_a_connection_string_are_secrets_too():
    mask = Mask(
        {"connection_string": "AccountName=acc;AccountKey=c2VjcmV0LWtleQ==;EndpointSuffix=x.net"}
    )
    assert mask.apply("bad key c2VjcmV0LWtleQ==") == "bad key ***"
    sas = Mask({"sas_token": "?sv=2024-11-04&sig=abc%2Fdef%3D&se=2030"})
    assert "abc" not in sas.apply("GET https://x/y?sv=2024-11-04&sig=abc%2Fdef%3D")
    assert "abc" not in sas.apply("sig is abc%2Fdef%3D")


def test_a_password_in_an_endpoint_is_a_secret_and_the_endpoint_is_none():
    options = {"endpoint_url": "http://host:1", "client_kwargs": {"region_name": "eu-west-1"}}
    assert Mask(options).apply("http://host:1 eu-west-1") == "http://host:1 eu-west-1"
    assert "pw" not in Mask({"endpoint_url": "http://u:pw@h"}).apply("no http://u:pw@h")


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_cause_that_shows_a_secret_anywhere_is_replaced(depth):
    cause: Exception = OSError("signed with hidden-secret")
    for _ in range(depth):
        outer = OSError("outer")
        outer.__context__ = cause
        cause = outer
    replaced = Mask({"secret": "hidden-secret"}).cause(cause)
    assert "hidden-secret" not in "".join(traceback.format_exception(replaced))
