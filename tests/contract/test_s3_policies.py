"""The S3 actions that docs/operate.md names for each permission, by policies of a real server."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pytest
from fixtures_servers import FETCHES
from object_servers import Server

import segstore_ds as segstore
from segstore_ds.errors import StorageError

pytestmark = FETCHES

PAGE = (Path(__file__).parents[2] / "segstore_ds/docs/operate.md").read_text()
ACTIONS = {
    name: re.findall(r"`(s3:\w+)`", re.search(rf"^\| {name} \| (.*?) \|", PAGE, re.MULTILINE)[1])
    for name in ("read", "list", "write", "delete")
}
EVENTS = pa.table({"n": range(10)})
SETTLED = segstore.Layout(inline_bytes=0)


@pytest.fixture
def limited(minio: Server) -> Callable[..., dict[str, Any]]:
    """Return storage options that permit no more than what is named."""
    keys = {"aws_access_key_id": minio.key, "aws_secret_access_key": minio.secret}
    sts = boto3.client("sts", endpoint_url=minio.endpoint, region_name="us-east-1", **keys)

    def make(*permissions: str) -> dict[str, Any]:
        actions = [action for name in permissions for action in ACTIONS[name]]
        allow = {"Effect": "Allow", "Action": actions, "Resource": "arn:aws:s3:::*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allow]})
        role = {"RoleArn": "arn:xxx:xxx:xxx:xxxx", "RoleSessionName": "tests", "Policy": policy}
        made = sts.assume_role(**role)["Credentials"]
        given = {"key": made["AccessKeyId"], "secret": made["SecretAccessKey"]}
        return {**minio.options, **given, "token": made["SessionToken"]}

    return make


def test_named_actions_are_enough_and_fewer_are_not(
    minio: Server, limited: Callable[..., dict[str, Any]]
) -> None:
    url = f"{minio.new_bucket()}/clicks"
    whole = segstore.create(url, EVENTS.schema, storage_options=minio.options)
    whole.append(EVENTS, layout=SETTLED)

    reader = segstore.open(url, storage_options=limited("read", "list"))
    assert reader.read().read_all().num_rows == 10
    reader.verify().check()
    with pytest.raises(StorageError, match="refuses these credentials"):
        reader.append(EVENTS, layout=SETTLED)
    for fewer in ("read", "list"):
        with pytest.raises(StorageError, match="refuses these credentials"):
            segstore.open(url, storage_options=limited(fewer))

    writer = segstore.open(url, storage_options=limited("read", "list", "write"))
    assert writer.append(EVENTS, layout=SETTLED).end == 20
    assert writer.append(EVENTS).end == 30
    with pytest.raises(StorageError, match="refuses these credentials"):
        segstore.drop(url, confirm=url, storage_options=limited("read", "list", "write"))
    segstore.drop(url, confirm=url, storage_options=limited("read", "list", "write", "delete"))
