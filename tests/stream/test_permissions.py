"""The table of permissions in docs/operate.md: each call runs with what it names, not with less."""

import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from stream_kit import DAY, HOUR, SCHEMA, STAGED, make_stream, numbers, objects, wait

import segstore_ds as segstore
from segstore_ds.errors import SegstoreError, StorageError
from segstore_ds.storage import open_storage
from segstore_ds.storage.checked import CheckedStorage

PAGE = (Path(__file__).parents[2] / "segstore_ds/docs/operate.md").read_text()
ALL = ("read", "list", "write", "delete")


def needs() -> dict[str, list[tuple[str, ...]]]:
    """Return what each call needs of the stream's folder and of another one, by the table.

    What stands behind a semicolon is needed later, or by what follows.
    """
    _, table = PAGE.split("| calls | the stream's folder | another folder |\n|---|---|---|\n")
    rows = [row.strip("|").split("|") for row in table.split("\n\n")[0].splitlines()]
    return {
        call.strip(): [tuple(word for word in ALL if word in cell.split(";")[0]) for cell in cells]
        for calls, *cells in rows
        for call in calls.replace("`", "").split(", ")
    }


NEEDS = needs()
_PERMISSIONS = {"get": "read", "get_range": "read", "info": "read", "list": "list"}
_PERMISSIONS |= {"delete": "delete"}  # all other requests write
SETTLED = segstore.Layout(segment_format="parquet", inline_bytes=0)


class Store:
    """Refuses requests to folders by the permissions that it is told; those to others pass."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.permits: dict[str, tuple[str, ...]] = {}
        self.refused = 0

    def place(self) -> str:
        return f"{self.root}{uuid.uuid4().hex}"

    def check(self, url: str, verb: str) -> None:
        permitted = self.permits.get(url, ALL)
        if _PERMISSIONS.get(verb, "write") not in permitted:
            self.refused += 1
            raise PermissionError(f"not permitted: {verb}")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store that permits everything at first: in memory, as far as S3 is."""
    found, resume = Store("memory://"), CheckedStorage.resume

    def checked(
        self: CheckedStorage, verb: str, path: str, work: Any, *args: Any, **kw: Any
    ) -> Any:
        def permitted(*inner: Any, **named: Any) -> Any:
            found.check(self.url, verb)
            return work(*inner, **named)

        return resume(self, verb, path, permitted, *args, **kw)

    monkeypatch.setattr(CheckedStorage, "resume", checked)
    return found


def nothing(url: str, other: str) -> None:
    """Prepare no stream."""


def filled(url: str, other: str) -> None:  # noqa: ARG001
    stream = segstore.create(url, SCHEMA, upkeep=None)
    stream.append(numbers(0, 10), layout=STAGED)
    stream.append(numbers(10, 20), layout=STAGED)
    stream.append(numbers(20, 21))
    stream.tags.set("monday")
    stream.readers.register("billing", owner="a", start="head")


def backed_up(url: str, other: str) -> None:
    """A stream, and an older backup of it."""
    filled(url, other)
    segstore.open(url).back_up(other)
    segstore.open(url).append({"n": 1})


def cloned(url: str, other: str) -> None:
    filled(other, "")
    segstore.open(other).copy_to(url, mode="clone", copy_id="c")


def followed(url: str, other: str) -> None:
    filled(url, other)
    segstore.open(url).followers.add(other)


def damaged(url: str, other: str) -> None:
    filled(url, other)
    newest = segstore.open(url).version
    open_storage(url).put(f"log/{newest:020}", b"damaged")


def following(url: str, other: str) -> None:
    followed(other, url)


def published(url: str, other: str) -> None:
    filled(url, other)
    segstore.open(url).append(numbers(21, 30), layout=SETTLED)
    segstore.open(url).publish("delta")


def newest(url: str, other: str) -> None:
    filled(url, other)
    segstore.open(url).publish("delta", latest_by=["s"])


def _follow(stream: segstore.Stream, *name: str) -> None:
    for _ in stream.follow(*name, start="head", timeout=0):
        pass


def _appender(stream: segstore.Stream) -> None:
    with stream.appender() as appender:
        appender.append({"n": 1, "s": "a"})


Prepare = Callable[[str, str], object]
Run = Callable[[segstore.Stream, str], object]
# What is there before a call, and the call, which gets the stream and the other folder.
_ON_STREAMS: Mapping[str, tuple[Prepare, Run]] = {
    "open": (filled, lambda stream, _: stream),
    "read": (filled, lambda stream, _: stream.read().read_all()),
    "scan": (filled, lambda stream, _: stream.scan(filters="n > 15").count()),
    "latest": (filled, lambda stream, _: stream.latest(["s"]).read_all()),
    "follow()": (filled, lambda stream, _: _follow(stream)),
    "info": (filled, lambda stream, _: stream.info()),
    "history": (filled, lambda stream, _: stream.history().read_all()),
    "metadata": (filled, lambda stream, _: stream.metadata("storage").read_all()),
    "metrics": (filled, lambda stream, _: stream.metrics(storage=True)),
    "picture": (filled, lambda stream, _: stream.picture().to_html()),
    "verify": (filled, lambda stream, _: stream.verify().check()),
    "follow(name)": (filled, lambda stream, _: _follow(stream, "new")),
    "readers.register": (
        filled,
        lambda stream, _: stream.readers.register("r", start="head").publish(3),
    ),
    "readers.release": (filled, lambda stream, _: stream.readers.release("billing")),
    "append": (filled, lambda stream, _: stream.append(numbers(0, 9), layout=STAGED)),
    "overwrite": (filled, lambda stream, _: stream.overwrite(numbers(0, 9))),
    "appender": (filled, lambda stream, _: _appender(stream)),
    "tags.set": (filled, lambda stream, _: stream.tags.set("now")),
    "tags.delete": (filled, lambda stream, _: stream.tags.delete("monday")),
    "change_schema": (filled, lambda stream, _: stream.change_schema(rename={"s": "t"})),
    "settings.update": (filled, lambda stream, _: stream.settings.update(key_columns=["s"])),
    "truncate": (filled, lambda stream, _: stream.truncate(10)),
    "retain": (filled, lambda stream, _: stream.retain(max_bytes=0, respect_readers=False)),
    "seal": (filled, lambda stream, _: stream.seal()),
    "restore": (filled, lambda stream, _: stream.restore(1)),
    "compact": (filled, lambda stream, _: stream.compact()),
    "redact": (filled, lambda stream, _: stream.redact("n == 3", columns=["s"])),
    "publish": (filled, lambda stream, _: stream.publish("delta", settle=True)),
    "publish(latest_by=)": (filled, lambda stream, _: stream.publish("delta", latest_by=["s"])),
    "published.remove": (published, lambda stream, _: stream.published.remove("delta")),
    "published.remove_latest": (newest, lambda stream, _: stream.published.remove_latest()),
    "copy_to": (filled, lambda stream, other: stream.copy_to(other, copy_id="c")),
    'copy_to(mode="events")': (
        filled,
        lambda stream, other: stream.copy_to(other, mode="events", copy_id="c"),
    ),
    "back_up": (backed_up, lambda stream, other: stream.back_up(other)),
    'copy_to(mode="clone")': (
        filled,
        lambda stream, other: stream.copy_to(other, mode="clone", copy_id="c"),
    ),
    "read of a clone": (cloned, lambda stream, _: stream.read().read_all()),
    "append to a clone": (cloned, lambda stream, _: stream.append(numbers(0, 9))),
    "materialize": (cloned, lambda stream, _: stream.materialize()),
    "followers.add": (filled, lambda stream, other: stream.followers.add(other)),
    "followers.remove": (followed, lambda stream, other: stream.followers.remove(other)),
    "append with followers": (
        followed,
        lambda stream, _: stream.append(numbers(0, 9), layout=STAGED),
    ),
    "read with followers": (followed, lambda stream, _: stream.read(replicated=True).read_all()),
    "followers.promote": (following, lambda stream, _: stream.followers.promote()),
}
_OTHERS: Mapping[str, tuple[Prepare, Callable[[str, str], object]]] = {
    "exists": (filled, lambda url, _: segstore.exists(url)),
    "list_streams": (filled, lambda url, _: segstore.list_streams(url)),
    "create": (nothing, lambda url, _: segstore.create(url, SCHEMA)),
    "drop": (filled, lambda url, _: segstore.drop(url, confirm=url)),
    "repair": (damaged, lambda url, _: segstore.repair(url, allow_loss=True)),
    "salvage": (filled, segstore.salvage),
}


def on_stream(run: Run, url: str, other: str) -> object:
    return run(segstore.open(url), other)


CALLS: dict[str, tuple[Prepare, Callable[[str, str], object]]] = {
    **{name: (first, partial(on_stream, run)) for name, (first, run) in _ON_STREAMS.items()},
    **_OTHERS,
}


def attempt(store: Store, call: str, permits: list[tuple[str, ...]]) -> None:
    """Prepare and make a call; no folder above may be listed."""
    prepare, run = CALLS[call]
    url = store.place()
    other = f"{url}_latest" if "latest" in call and call != "latest" else store.place()
    store.permits = {}
    prepare(url, other)
    store.refused = 0
    store.permits = {store.root: (), url: permits[0], other: permits[1]}
    run(url, other)


def test_table_has_every_call() -> None:
    assert {*NEEDS} == {*CALLS} | {"maintain"}


@pytest.mark.parametrize("call", CALLS)
def test_call_runs_with_what_it_needs_and_not_with_less(store: Store, call: str) -> None:
    """What only its folder of files needs, such as deleting, is not asked for."""
    needed = NEEDS[call]
    attempt(store, call, needed)
    for folder, permissions in enumerate(needed):
        for permission in permissions:
            less = [*needed]
            less[folder] = tuple(each for each in permissions if each != permission)
            with pytest.raises(SegstoreError):
                attempt(store, call, less)
            assert store.refused, less


def test_maintain_needs_to_delete_and_appends_do_not(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Upkeep that may not delete is a warning; somebody else's `maintain` does it later."""
    stream, storage = make_stream(0)
    stream.settings.update(upkeep=segstore.UpkeepPolicy())
    for n in range(3):
        stream.append(numbers(n, n + 1), layout=STAGED)
    stream.truncate(2)
    store.permits = {storage.url: ("read", "list", "write")}
    for n in range(20):
        wait(storage, DAY)
        stream.append(numbers(n, n + 1), layout=STAGED)
    assert "not permitted: delete" in caplog.text
    with pytest.raises(StorageError, match="not permitted: delete"):
        stream.maintain()
    assert NEEDS["maintain"][0] == ALL
    store.permits = {}
    before = len(objects(storage, "segments"))
    stream.refresh().maintain()
    assert before - len(objects(storage, "segments")) == 2
    assert len(objects(storage, "log/")) < 10
    stream.verify().check()


def test_publishing_needs_to_delete_from_the_tenth_time_on(store: Store) -> None:
    stream, storage = make_stream(1)
    store.permits = {storage.url: NEEDS["publish"][0]}

    def publish_hourly(times: int) -> None:
        for n in range(times):
            wait(storage, HOUR)
            stream.append(numbers(n, n + 1))
            stream.publish("delta", settle=True)

    publish_hourly(9)
    with pytest.raises(StorageError, match="not permitted: delete"):
        publish_hourly(20)
