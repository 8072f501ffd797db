"""A stream that somebody is about to meddle with, and what lies beside it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from crash_kit import SCHEMA, events, fresh_storage, quick_folder
from malicious_kit import SECRET

from segstore_ds.storage import Storage, open_storage
from segstore_ds.stream.opening import create as create_on
from segstore_ds.write import append
from segstore_ds.write.layout import Layout


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder whose syncs cost nothing: what a killed process wrote is there anyway."""
    with quick_folder() as path:
        yield path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return the stream's folder, canaries beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("segstore_ds.status.table.SEGMENTS.rows", 2)
        patch.setattr(append, "FRAME_MOST_BYTES", 0)
        storage = fresh_storage("local", tmp_path)
        stream = create_on(storage, SCHEMA)
        for batch in range(5):
            rows = events(batch * 2, batch * 2 + 2)
            stream.append(rows, writer_id="w", batch_id=batch, layout=Layout(compression="none"))
    assert stream._log.root.parts
    assert len(stream._log.root.entries) == 2
    for outside in (tmp_path / "canary", tmp_path / "x" / "canary", tmp_path.parent / "canary"):
        outside.parent.mkdir(exist_ok=True)
        outside.write_bytes(SECRET)
    return Path(storage.url.removeprefix("file://"))


@pytest.fixture
def storage(home: Path) -> Storage:
    """Return the storage of the stream."""
    return open_storage(home)
