"""Actors of a model: real code over a storage and a clock whose answers the model chooses.

An actor is deterministic given its answers, so its histories form a tree. It runs in a thread that
waits where the actor asks; the first answer at a place lets it go on from there. For each other
answer it is run again from the start with the answers so far. One thread runs at a time.
"""

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from segstore_ds.errors import InternalError, MissingObjectError, StorageError
from segstore_ds.log.clock import Clock
from segstore_ds.storage.base import ObjectInfo, StagedWriter, Storage, StorageStats

WALL_START_US = 1_700_000_000_000_000
LONG_SLEEP_S = 60.0
FAILED = object()  # the answer of a request that failed


MOST_WAITING = 50


class _Stopped(BaseException):
    """Unwinds an actor that waits for an answer that nobody needs."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request: a storage call by its verb, `clock`, `nap`, `note`, or `done` at the end.

    `payload` is the text of a note or the length of a nap in seconds.
    """

    verb: str
    path: str = ""
    data: bytes = b""
    payload: tuple[Hashable, ...] = ()

    def __str__(self) -> str:
        return " ".join(str(part) for part in (self.verb, self.path, *self.payload) if part)

    @property
    def reads(self) -> bool:
        """Tell whether this asks what the storage holds."""
        return self.verb in ("get", "info", "list")

    @property
    def writes(self) -> bool:
        """Tell whether this may change what the storage holds."""
        return self.verb in ("create", "put", "delete")

    def notes(self, kind: str) -> bool:
        """Tell whether this is a note of that kind."""
        return self.verb == "note" and self.payload[0] == kind


Ask = Callable[[Request], Any]


class Actor:
    """One actor, with its storage and clock; `ask` answers its requests."""

    def __init__(self, name: str, ask: Ask) -> None:
        self.name = name
        self._ask = ask
        self._ids = 0
        self.storage: Storage = ModelStorage(ask)
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
    """A storage that turns every call into a request; staged objects are not modelled."""

    def __init__(self, ask: Ask) -> None:
        self.url = "memory://model"
        self.stats = StorageStats()
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

    def list(self, folder: str, start: str = "") -> Iterator[ObjectInfo]:
        wanted = f"{folder}/{start}" if start else ""
        found = self._call(Request("list", folder))
        yield from (_info(*entry) for entry in found if entry[0].startswith(wanted))

    def open_staged(self, path: str, *, replace: bool = False) -> StagedWriter:  # noqa: ARG002
        raise InternalError("the model has no staged objects", path=path)

    def ensure_exclusive(self) -> None:
        """Do nothing: the model's create is exclusive."""


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
                if found.startswith(f"{path}/")
            )
    return None


def _info(path: str, size: int, made_s: int | None) -> ObjectInfo:
    return ObjectInfo(path, size, 0 if made_s is None else WALL_START_US + made_s * 1_000_000)


class Run:
    """An actor that runs in a thread until it asks, and waits there for its answer.

    `request` is what it asks; `done` at the end.
    """

    def __init__(self, name: str, program: Program) -> None:
        self._talk = _Talk()
        work = (self._talk, name, program)
        threading.Thread(target=_act, args=work, name=f"actor {name}", daemon=True).start()
        self.request = self._talk.wait()

    def go_on(self, answer: Any) -> None:
        """Answer the request, and wait for the next one; raises what the actor raises."""
        self.request = self._talk.tell(answer)

    def __del__(self) -> None:
        self._talk.stop()


class _Talk:
    """What the two threads of a run share; each waits for the other."""

    def __init__(self) -> None:
        self._asked, self._told = threading.Lock(), threading.Lock()
        self._asked.acquire()
        self._told.acquire()
        self._request = Request("start")
        self._answer: Any = None
        self._error: BaseException | None = None

    def ask(self, request: "Request") -> Any:
        """Give a request to the model's thread, and wait for its answer."""
        self._request = request
        self._asked.release()
        self._told.acquire()
        if self._answer is _Stopped:
            raise _Stopped
        return self._answer

    def end(self, error: BaseException | None) -> None:
        """Say that the actor has ended."""
        self._request, self._error = Request("done"), error
        self._asked.release()

    def tell(self, answer: Any) -> "Request":
        """Give an answer to the actor's thread, and wait for its next request."""
        self._answer = answer
        self._told.release()
        return self.wait()

    def wait(self) -> "Request":
        self._asked.acquire()
        if self._error is not None:
            raise self._error
        return self._request

    def stop(self) -> None:
        """Let the actor's thread end, if it still waits."""
        if self._request.verb != "done":
            self._answer = _Stopped
            self._told.release()


def _act(talk: _Talk, name: str, program: Program) -> None:
    try:
        program(Actor(name, talk.ask))
    except _Stopped:
        return
    except BaseException as error:  # noqa: BLE001 - the model's thread raises it
        talk.end(error)
    else:
        talk.end(None)


class Place:
    """A place in the tree of an actor's histories: the actor's request after a list of answers.

    `history` holds the requests before it, with their answers. Two things grow as places behind it
    become known: `changes`, the paths that this request and later ones may write, and `tells`,
    whether a note or a nap comes here, at once or after nothing but reads of the clock.
    """

    __slots__ = ("_children", "_history", "_parent", "_tree", "changes", "name", "request", "tells")

    def __init__(
        self,
        tree: "_Tree",
        run: Run,
        history: tuple[tuple[Request, Any], ...],
        parent: "Place | None" = None,
    ) -> None:
        self.name = tree.name
        self.request = run.request
        self.changes: set[str] = set()
        self.tells = False
        self._parent = parent
        self._history = history
        self._tree = tree
        self._children: dict[Any, Place] = {}
        tree.keep(self, run)
        self._make_known()

    def _make_known(self) -> None:
        place: Place | None = self
        if self.request.writes:
            while place is not None and self.request.path not in place.changes:
                place.changes.add(self.request.path)
                place = place._parent
        if self.request.verb in ("note", "nap"):
            self.tells = True
            while (place := place and place._parent) and place.request.verb == "clock":
                place.tells = True

    @classmethod
    def first(cls, name: str, program: Program) -> "Place":
        """Return the place of an actor that has asked once."""
        tree = _Tree(name, program)
        return cls(tree, tree.start(), ())

    def after(self, answer: Any) -> tuple["Place", bool]:
        """Return the place after an answer, and whether the actor had to be run for it."""
        found = self._children.get(answer)
        if found is not None:
            return found, False
        run = self._tree.take(self) or self._repeat()
        run.go_on(answer)
        found = Place(self._tree, run, (*self._history, (self.request, answer)), self)
        if found.request.verb == "done":  # all ended actors are alike: they do nothing more
            found = self._tree.ends.setdefault("done", found)
        self._children[answer] = found
        return found, True

    def close(self) -> None:
        """End the threads of this actor; it can still go on from any place."""
        self._tree.close()

    def _repeat(self) -> Run:
        run = self._tree.start()
        for request, answer in self._history:
            self._check(run, request)
            run.go_on(answer)
        self._check(run, self.request)
        return run

    def _check(self, run: Run, request: Request) -> None:
        if run.request != request:
            raise InternalError("actor is not deterministic", actor=self.name)


class _Tree:
    """The histories of one actor, and the runs that wait at some of their places."""

    def __init__(self, name: str, program: Program) -> None:
        self.name = name
        self.ends: dict[str, Place] = {}
        self._program = program
        self._waiting: dict[Place, Run] = {}

    def start(self) -> Run:
        return Run(self.name, self._program)

    def keep(self, place: Place, run: Run) -> None:
        if run.request.verb != "done":
            self._waiting[place] = run
        if len(self._waiting) > MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]

    def take(self, place: Place) -> Run | None:
        return self._waiting.pop(place, None)

    def close(self) -> None:
        self._waiting.clear()
