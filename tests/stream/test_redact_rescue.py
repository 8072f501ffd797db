"""Redactions that meet repair and promotion: what was redacted comes back without being asked for.

Not a value of it may be read, whatever object was lost and however much loss a repair may accept.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from follower_kit import Pair
from stream_kit import TIGHT, make_stream, numbers, objects
from virtual_time import TimedStorage

from segstore_ds.compact import run
from segstore_ds.errors import InvalidInputError, SegstoreError
from segstore_ds.format import names
from segstore_ds.format.redactions import redactions_of
from segstore_ds.log.context import Job
from segstore_ds.redact.plan import RedactRequest
from segstore_ds.redact.rewrite import RedactedSegment
from segstore_ds.redact.run import run_redact
from segstore_ds.status.table_status import Slice
from segstore_ds.stream.opening import open as open_on
from segstore_ds.stream.rescue import repair as repair_on
from segstore_ds.stream.stream import Stream
from segstore_ds.write.layout import Layout

SECRETS = {"s13", "s27", "s41", "s66"}
FILTERS = [["s", "in", sorted(SECRETS)]]
LAYOUTS = (
    Layout(),
    Layout(inline_bytes=0),
    Layout(inline_bytes=0, segment_format="parquet"),
)


def _fill(stream: Stream) -> None:
    for n in range(8):
        stream.append(numbers(10 * n, 10 * n + 10), layout=LAYOUTS[n % 3])


def _redact(stream: Stream, **options: bool) -> object:
    return stream.refresh().redact(FILTERS, columns=["s"], redact_id="r", **options)


def _half_redact(stream: Stream, commits: int) -> None:
    """Redact by commits of one segment, and die after some of them."""
    done: list[RedactedSegment] = []

    def launch(job: Job, chosen: Sequence[Slice]) -> Iterator[RedactedSegment]:
        if len(done) == commits:
            raise KeyboardInterrupt
        found = [*job.run(chosen)]
        done.extend(segment for segment in found if segment.run)
        yield from found

    context = replace(stream.refresh()._context, launch=launch)
    with pytest.raises(KeyboardInterrupt):
        run_redact(context, RedactRequest(FILTERS, ["s"], "", "r"))


def _texts(stream: Stream) -> list[str | None]:
    return stream.refresh().read().read_all()["s"].to_pylist()


def _expected(count: int = 80) -> list[str | None]:
    return [None if f"s{n}" in SECRETS else f"s{n}" for n in range(count)]


@pytest.mark.parametrize("loss", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("how", ["gone", pytest.param("cut", marks=pytest.mark.slow)])
def test_a_repair_brings_no_redacted_value_back(
    how: str, loss: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each object is lost in turn. What is read then is redacted, or an error."""
    for target, value in TIGHT.items():
        monkeypatch.setattr(target, value)
    stream, storage = make_stream(0)
    _fill(stream)
    assert _redact(stream).rows == len(SECRETS)
    stream.append(numbers(80, 85))
    files, read = {path: storage.get(path) for path in sorted(objects(storage))}, 0
    for lost, data in files.items():
        storage.delete(lost)
        if how == "cut":
            storage.put(lost, data[:-7])
        with suppress(SegstoreError):
            repair_on(storage, allow_loss=loss, clock=stream._context.clock)
        with suppress(SegstoreError):
            again = open_on(storage, clock=stream._context.clock)
            found = again.read(read_cache_bytes=0).read_all()["s"].to_pylist()
            assert not SECRETS & {*found}, lost
            read += 1
        for path in objects(storage) | {*files}:
            storage.delete(path)
        for path, content in files.items():
            storage.put(path, content)
    assert read > len(files) // 2


def _damage(storage: TimedStorage, versions: range) -> None:
    for version in versions:
        path = f"log/{names.build_log_name(version)}"
        data = storage.get(path)
        storage.delete(path)
        storage.put(path, data[:-7])


def test_a_redaction_is_left_behind_only_on_request() -> None:
    """Its commits can't be read, so the version before lists the values."""
    stream, storage = make_stream(0)
    _fill(stream)
    before = stream.version
    _redact(stream)
    clock = stream._context.clock
    _damage(storage, range(before + 1, stream.version + 1))
    with pytest.raises(InvalidInputError, match="may be a redaction"):
        repair_on(storage, allow_loss=True, clock=clock)
    assert repair_on(storage, allow_loss=True, allow_redacted=True, clock=clock).lost
    again = open_on(storage, clock=clock)
    assert {*_texts(again)} > SECRETS
    assert _redact(again).rows == len(SECRETS)
    assert _texts(again) == _expected()
    again.verify().check()


def test_losing_other_commits_needs_no_such_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a redaction wrote is listed, or was retired by a compaction since."""
    for target, value in TIGHT.items():
        monkeypatch.setattr(target, value)
    stream, storage = make_stream(0)
    _fill(stream)
    _redact(stream)
    stream.compact(end=40)
    before = stream.version
    stream.append(numbers(80, 85))
    _damage(storage, range(before + 1, stream.version + 1))
    assert repair_on(storage, allow_loss=True, clock=stream._context.clock).lost
    assert _texts(open_on(storage, clock=stream._context.clock)) == _expected()


@pytest.mark.parametrize("commits", [1, 2])
def test_a_half_done_redaction_survives_a_repair(
    commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it committed stays redacted. Its id finishes it, up to the new tail."""
    monkeypatch.setattr(run, "COMMIT_ROWS", 1)
    stream, storage = make_stream(0)
    _fill(stream)
    _half_redact(stream, commits)
    known = redactions_of(stream.refresh()._log.root)["r"]
    stream.append(numbers(13, 14))
    clock = stream._context.clock
    _damage(storage, range(stream.version, stream.version + 1))
    report = repair_on(storage, allow_loss=True, clock=clock)
    assert any("'r' is not finished" in text for text in report.repaired)
    again = open_on(storage, clock=clock)
    assert len(SECRETS & {*_texts(again)}) == len(SECRETS) - known.rows
    again.append(numbers(13, 14))
    done = _redact(again)
    assert (done.rows, done.tail, done.repeated) == (len(SECRETS) + 1, 81, False)
    assert _texts(again) == [*_expected(), None]
    again.verify().check()


def test_a_follower_gives_back_what_was_redacted() -> None:
    """Commits and objects come from it as they were committed, so nothing is lost."""
    pair = Pair()
    stream = pair.stream
    stream.followers.add(pair.follower)
    _fill(stream)
    before = stream.version
    _redact(stream)
    for version in range(before + 1, stream.version + 1):
        stream._log.storage.delete(f"log/{names.build_log_name(version)}")
    for path in objects(stream._log.storage, "segments"):
        if names.is_redacted(path):
            stream._log.storage.delete(path)
    report = repair_on(stream._log.storage, clock=stream._context.clock)
    assert (report.ok, [*report.lost]) == (True, [])
    again = pair.reopen(pair.primary)
    assert _texts(again) == _expected()
    again.verify().check()


@pytest.mark.parametrize("commits", [0, 1, 3])
def test_a_promoted_follower_finishes_a_redaction(
    commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The primary dies half-way; the same id goes on by the bound tail, and forgets there."""
    monkeypatch.setattr(run, "COMMIT_ROWS", 1)
    pair = Pair()
    stream = pair.stream
    stream.followers.add(pair.follower)
    _fill(stream)
    _half_redact(stream, commits)
    stream.append(numbers(13, 14))
    pair.world.lost.add(pair.primary)
    promoted = pair.reopen(pair.follower)
    promoted.followers.promote()
    known = redactions_of(promoted._log.root).get("r")
    assert (known is None) == (commits == 0)
    assert known is None or (known.done, known.rows) == (False, commits)
    done = _redact(promoted)
    assert (done.rows, done.repeated) == (len(SECRETS) + (commits == 0), False)
    assert _texts(promoted) == [*_expected(), None if commits == 0 else "s13"]
    assert _redact(promoted).repeated
    promoted.verify().check()
    pair.time.advance(8 * 86_400)
    assert _redact(promoted, forget=True).forgotten.done
    assert _texts(promoted) == [*_expected(), None if commits == 0 else "s13"]
