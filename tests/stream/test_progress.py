"""What long work tells a callback."""

import pytest
from stream_kit import HOUR, SCHEMA, STAGED, make_stream, numbers, wait

import segstore_ds as segstore


@pytest.fixture
def noted():
    return []


@pytest.fixture
def hear(noted):
    return lambda done, total: noted.append((done, total))


def test_verify_and_compact_count_events(noted, hear):
    stream, _ = make_stream(3)
    assert stream.verify(progress=hear).ok
    # Events once, and each kept version once, however many of them list the same events.
    assert noted == [(done, 34) for done in (10, 20, 30, 31, 32, 33, 34)]
    noted.clear()
    assert stream.compact(progress=hear).segments_after == 1
    assert noted == [(30, 30)]


@pytest.mark.parametrize("mode", ["segments", "events"])
def test_copies_count_events_to_the_last(tmp_path, noted, hear, mode):
    stream = segstore.create(tmp_path / "s", SCHEMA, upkeep=None)
    for start in (0, 10, 20):
        stream.append(numbers(start, start + 10))
    stream.copy_to(tmp_path / "copy", copy_id="a", mode=mode, start=5, progress=hear)
    assert noted[-1] == (25, 25)
    assert noted == sorted(noted)
    noted.clear()
    assert segstore.verify(tmp_path / "copy", progress=hear).rows == 25
    assert noted[-1] == (26, 26)  # of one version


def test_vacuum_counts_objects(noted, hear):
    stream, storage = make_stream(0)
    for start in (0, 10, 20):
        stream.append(numbers(start, start + 10), layout=STAGED)
    stream.compact()
    wait(storage, 900 * HOUR)
    stream.seal()
    wait(storage, 900 * HOUR)
    stream.maintain(keep="30d")
    report = stream.maintain(grace="7d", progress=hear)
    assert noted == [(n + 1, len(report.deleted)) for n in range(len(report.deleted))]
    assert noted


def test_what_a_callback_raises_ends_the_work():
    stream, _ = make_stream(3)

    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stream.compact(progress=stop)
    assert stream.refresh().verify().ok
    assert stream.compact().segments_after == 1
