"""A hint proved a commit that power loss could still take, so the stream did not open.

A writer ended between the link of its commit and the sync of the folder; upkeep of another process
wrote the hint of that commit to learn the store's time. Found by a life whose disk loses power.
"""

import segstore_ds as segstore


def test_commit_that_was_never_synced_may_be_gone_after_the_store_was_asked_for_its_time(tmp_path):
    stream = segstore.create(tmp_path / "s", like={"n": 1})
    stream.append([{"n": 1}])
    hint = tmp_path / "s" / "log" / "_latest"
    acknowledged = hint.read_bytes()
    stream.append([{"n": 2}])
    commit = tmp_path / "s" / "log" / f"{stream.version:020d}"
    hint.write_bytes(acknowledged)  # the writer ends before its sync, and so before its hint

    segstore.open(tmp_path / "s").maintain()
    commit.unlink()  # by a power loss

    assert segstore.open(tmp_path / "s").tail == 1


def test_hint_of_an_acknowledged_commit_still_proves_it(tmp_path):
    """Asking for the time keeps the proof."""
    stream = segstore.create(tmp_path / "s", like={"n": 1})
    stream.append([{"n": 1}])
    hint = (tmp_path / "s" / "log" / "_latest").read_bytes()
    stream._log.store_now_us()
    assert (tmp_path / "s" / "log" / "_latest").read_bytes() == hint
