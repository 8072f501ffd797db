"""Actors of a model: real code over a storage and a clock whose answers the model chooses.

There are no threads. An actor is deterministic given its answers. So it is run again from the start
with the answers so far, and stops where it asks for one more. These histories form a tree, and each
place in it is run once.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from segstore_ds.errors import InternalError, MissingObjectError, StorageError
from segstore_ds.format import names
from segstore_ds.log.clock import Clock
from segstore_ds.storage.base import ObjectInfo, StagedWriter, Storage, StorageStats

WALL_START_US = 1_700_000_000_000_000
LONG_SLEEP_S = 60.0
FAILED = object()  # the answer of a request that failed


class _Paused(BaseException):
    """Unwinds an actor that asks for an answer that does not exist yet."""

    def __init__(self, request: "Request") -> None:
        self.request = request


@dataclass(frozen=True, slots=True)
class Request:
    """A request: a storage call by its verb, `clock`, `nap`, `note`, or `done` at the end.

    `after` is where a page of a listing starts; `payload` is the text of a note or the length of a
    nap in seconds.
    """

    verb: str
    path: str = ""
    data: bytes = b""
    after: str = ""
    payload: tuple[Hashable, ...] = ()

    def __str__(self) -> str:
        return " ".join(str(part) for part in (self.verb, self.path, *self.payload) if part)

    def notes(self, kind: str) -> bool:
        """Tell whether this is a note of that kind."""
        return self.verb == "note" and self.payload[0] == kind


Ask = Callable[[Request], Any]


class Actor:
    """One actor, with its storage and clock; `ask` answers its requests.

    `page` is the number of objects that a listing returns per step; None for all.
    """

    def __init__(self, name: str, ask: Ask, page: int | None = None) -> None:
        self.name = name
        self._ask = ask
        self._ids = 0
        self.storage: Storage = ModelStorage(ask, page)
        self.clock = Clock(
            wall_us=lambda: WALL_START_US + ask(Request("clock")) * 1_000_000,
            boot_s=lambda: float(ask(Request("clock"))),
            sleep=self._sleep,
            random=lambda: 0.5,
            new_id=self._new_id,
        )

    def note(self, kind: str, *payload: Hashable) -> None:
        """Send a note to the ghost."""
        self._ask(Request("note", payload=(kind, *payload)))

    def _sleep(self, seconds: float) -> None:
        if seconds >= LONG_SLEEP_S:
            self._ask(Request("nap", payload=(seconds,)))

    def _new_id(self) -> str:
        self._ids += 1
        return f"{self.name}-{self._ids}"


Program = Callable[[Actor], None]


class ModelStorage(Storage):
    """A storage that turns every call into a request; staged objects are not modelled.

    `page` is the number of objects that a listing returns per request; None for all.
    """

    def __init__(self, ask: Ask, page: int | None = None) -> None:
        self.url = "memory://model"
        self.stats = StorageStats()
        self._page = page
        self._ask = ask

    def _call(self, request: Request) -> Any:
        self.stats.add(request.verb)
        answer = self._ask(request)
        if answer is FAILED:
            raise StorageError("the model made the request fail", request=str(request))
        return answer

    def get(self, path: str, *, limit_bytes: int | None = None) -> bytes:  # noqa: ARG002
        data: bytes | None = self._call(Request("get", path))
        if data is None:
            raise MissingObjectError("no such object", path=path)
        return data

    def get_range(self, path: str, start: int, end: int) -> bytes:
        return self.get(path)[start:end]

    def info(self, path: str) -> ObjectInfo:
        found = self._call(Request("info", path))
        if found is None:
            raise MissingObjectError("no such object", path=path)
        return _info(path, *found)

    def create(self, path: str, data: bytes) -> bool:
        return bool(self._call(Request("create", path, data)))

    def put(self, path: str, data: bytes) -> None:
        self._call(Request("put", path, data))

    def delete(self, path: str) -> None:
        self._call(Request("delete", path))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        after = ""
        while found := self._call(Request("list", prefix, after=after)):
            page = found[: self._page]
            yield from (_info(*entry) for entry in page)
            if page == found:
                return
            after = page[-1][0]

    def open_staged(self, path: str, *, replace: bool = False) -> StagedWriter:  # noqa: ARG002
        raise InternalError("the model has no staged objects", path=path)

    def ensure_exclusive(self) -> None:
        """Do nothing: the model's create is exclusive."""


def is_dated(path: str) -> bool:
    """Tell whether code under test reads an object's modification time.

    It reads that of the hint just written, for the store's own time, and those of readers' records,
    for their lapse. No other object is dated, which keeps the number of states small.
    """
    if path.startswith(f"{names.READERS_FOLDER}/"):
        return not path.startswith(f"{names.READER_HINTS_FOLDER}/")
    return path == names.HINT_PATH


def answer(
    files: Mapping[str, bytes],
    now_s: int,
    request: Request,
    made: frozenset[tuple[str, int]] = frozenset(),
) -> Any:
    """Return a storage's answer to a request.

    `files` is the storage's content, and `made` the times of its dated objects.
    """
    path = request.path
    match request.verb:
        case "get":
            return files.get(path)
        case "info":
            return (len(files[path]), dict(made).get(path)) if path in files else None
        case "create":
            return path not in files
        case "clock":
            return now_s
        case "list":
            times = dict(made)
            return tuple(
                (found, len(data), times.get(found))
                for found, data in sorted(files.items())
                if found.startswith(f"{path}/") and found > request.after
            )
    return None


def _info(path: str, size: int, made_s: int | None) -> ObjectInfo:
    return ObjectInfo(path, size, 0 if made_s is None else WALL_START_US + made_s * 1_000_000)


class Place:
    """A place in the tree of an actor's histories: the actor's request after a list of answers.

    `parent` is the place before the last answer, None at the start; `answer` is that last answer.
    """

    __slots__ = (
        "_answer",
        "_children",
        "_ends",
        "_page",
        "_parent",
        "_program",
        "name",
        "request",
    )

    def __init__(
        self,
        name: str,
        program: Program,
        page: int | None,
        parent: "Place | None" = None,
        answer: Any = None,
    ) -> None:
        self.name = name
        self._program = program
        self._page = page
        self._parent = parent
        self._answer = answer
        self._children: dict[Any, Place] = {}
        self._ends: dict[str, Place] = parent._ends if parent else {}
        self.request = self._run()

    def after(self, answer: Any) -> tuple["Place", bool]:
        """Return the place after an answer, and whether the actor had to be run for it."""
        found = self._children.get(answer)
        if found is not None:
            return found, False
        found = Place(self.name, self._program, self._page, self, answer)
        if found.request.verb == "done":  # all ended actors are alike: they do nothing more
            found = self._ends.setdefault("done", found)
        self._children[answer] = found
        return found, True

    def _run(self) -> Request:
        answers: list[Any] = []
        place = self
        while place._parent is not None:
            answers.append(place._answer)
            place = place._parent
        asked = Request("start")

        def ask(request: Request) -> Any:
            nonlocal asked
            if not answers:
                raise _Paused(request)
            asked = request
            return answers.pop()

        last = Request("done")
        try:
            self._program(Actor(self.name, ask, self._page))
        except _Paused as pause:
            last = pause.request
        if answers or (self._parent is not None and asked != self._parent.request):
            raise InternalError("actor is not deterministic", actor=self.name)
        return last
