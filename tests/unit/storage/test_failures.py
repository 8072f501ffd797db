"""What a call to the filesystem leaves behind when it fails."""

import uuid

import pytest

from segstore_ds.storage import checked, open_storage


def test_folders_of_a_shared_root_are_remembered_within_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A clone reads one folder for each job of its origin, and may live long."""
    monkeypatch.setattr(checked, "FOUND_FOLDERS", 3)
    origin, clone = (open_storage(f"memory://{uuid.uuid4().hex}") for _ in range(2))
    paths = [f"segments/{n}/x" for n in range(10)]
    for path in paths:
        origin.put(path, path.encode())
    clone.share(origin.url, ("segments/",), lambda _: True)
    (root,) = clone._shared.values()  # type: ignore[attr-defined]
    for path in [*paths, *reversed(paths)]:
        assert clone.get(path) == path.encode()
        assert 1 <= len(root.found) <= 3
