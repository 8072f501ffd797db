"""First roots: what every new stream begins with, and what the log refuses to begin with."""

import uuid
from dataclasses import replace

import pytest

from segstore_ds.errors import InternalError
from segstore_ds.format.operation import Operation
from segstore_ds.format.root import Epoch, Root
from segstore_ds.log.context import StreamContext
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.status.history import begin_history
from segstore_ds.storage import open_storage
from segstore_ds.write.create import first_root

EPOCHS = (Epoch(0, 0, "x", None),)


@pytest.fixture
def context() -> StreamContext:
    log = StreamLog(open_storage(f"memory://{uuid.uuid4().hex}"))
    return StreamContext.of(log, client="segstore/1 app/a-1")


def first(context: StreamContext, **changes) -> Root:
    return begin_history(replace(first_root(context, Operation.COPY, EPOCHS), **changes))


def test_first_root_has_new_ids_and_a_row_of_history(context):
    root = first(context)
    assert root.stream_id != root.transaction
    assert (root.version, root.parent, root.head, root.tail) == (0, "", 0, 0)
    assert [(row.version, row.operation) for row in root.history] == [(0, "copy")]
    assert (root.history[0].client, root.history[0].application) == ("segstore/1", "a-1")
    assert context.log.create(root)
    assert context.log.reopen() == root


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"tail": 5}, "the head lies within what is listed"),
        ({"head": 1}, "the head lies within what is listed"),
        ({"log_start": 1}, "a first root begins the log"),
    ],
)
def test_log_refuses_a_first_root_that_breaks_a_rule(context, changes, rule):
    with pytest.raises(InternalError, match=rule):
        context.log.create(first(context, **changes))
    assert not list(context.storage.list(""))


def test_log_refuses_a_first_root_without_history(context):
    with pytest.raises(InternalError):
        context.log.create(first_root(context, Operation.COPY, EPOCHS))
