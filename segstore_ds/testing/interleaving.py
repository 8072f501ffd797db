"""Every interleaving of a few actors that run real code over one storage in memory.

An actor is a function over a `Storage` and a `Clock`. Whatever it asks of either is a step, and the
order of steps, the failures and the naps are choices; `explore` goes through all of them. A state
of everything that was met before is not explored again; so what grows is the number of states, not
of schedules.

Time stands still but for naps. A nap is a choice anywhere: time moves on while actors are between
two steps, or between two looks at the clock. An actor that sleeps long itself waits for one.

Failures of a put, as long as `faults` lasts: nothing happened (``fail``); an error now, the effect
at any later time, also at once (``late``); the effect, but the answer "taken", which is what a
client says that repeats requests on its own (``denied``). Other requests may only ``fail``.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from segstore_ds.errors import InternalError, SegstoreError
from segstore_ds.testing.actors import FAILED, Actor, Place, Program, Request, answer, is_dated


class Violation(AssertionError):  # noqa: N818 - what a checker finds is no failure of its own
    """An invariant does not hold; `explore` adds the steps that led there."""


@dataclass(frozen=True, slots=True)
class Event:
    """What the ghost is told of: a request before it is carried out, or its effect.

    `verb` is that of the request, or ``made`` and ``gone`` for an object that appeared or vanished;
    `actor` is empty for an effect that came late.
    """

    actor: str
    verb: str
    request: Request
    now_s: int


@dataclass(frozen=True, slots=True)
class Scene:
    """What is explored.

    Attributes:
        actors: Name -> program. A program notes "ready" once: up to there the actors are run one
            after another, in the order given, without choices.
        ghost: What the checker knows; hashable.
        observe: Returns the ghost after an event; raises Violation.
        check: Called for every new content of the storage, with what it holds, time and ghost.
        files: What lies in the storage at first.
        made: When that was made, as in `State`.
        naps: How long each nap is, in seconds, in their order.
        faults: How many requests may fail.
        kinds: Which failures: of ``fail``, ``late``, ``denied``, and ``read`` for other requests.
        page: How many objects a listing learns in one step; None for all.
        now_s: The time at first.
    """

    actors: Mapping[str, Program]
    ghost: Any
    observe: Callable[[Any, Event], Any]
    check: Callable[[Mapping[str, bytes], int, Any], None]
    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    made: frozenset[tuple[str, int]] = frozenset()
    naps: tuple[int, ...] = ()
    faults: int = 0
    kinds: frozenset[str] = frozenset({"fail", "late", "denied"})
    page: int | None = None
    now_s: int = 100_000


@dataclass(frozen=True, slots=True)
class Explored:
    """How much was explored: distinct states, steps between them, runs of actors, ends."""

    states: int
    steps: int
    runs: int
    ends: int


class Files(dict[str, bytes]):
    """Content of a storage: never changed once made, made once per content, compared as itself."""

    __slots__ = ()
    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__
    __ne__ = object.__ne__


class State(NamedTuple):
    """A state of everything.

    `late` holds requests whose effect is still under way; `made`, when those objects were made
    whose age somebody asks for.
    """

    files: Files
    made: frozenset[tuple[str, int]]
    late: frozenset[Request]
    now_s: int
    ghost: Any
    places: tuple[Place, ...]
    asleep: frozenset[int]
    faults: int
    naps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """A step: an actor's request with its outcome; a late effect; or, with neither, a nap."""

    actor: int | None = None
    outcome: str = "done"
    late: Request | None = None


class Model:
    """The states of a scene and the steps between them.

    Args:
        scene: What is explored.
    """

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.runs = 0
        self._contents: dict[frozenset[tuple[str, bytes]], Files] = {}

    def start(self) -> State:
        """Return the first state: every actor is ready.

        Raises:
            InternalError: An actor ends before it is ready.
        """
        scene = self.scene
        places = tuple(Place(name, run, scene.page) for name, run in scene.actors.items())
        state = State(
            files=self._content(scene.files),
            made=scene.made,
            late=frozenset(),
            now_s=scene.now_s,
            ghost=scene.ghost,
            places=places,
            asleep=frozenset(),
            faults=0,
            naps=(),
        )
        for actor, place in enumerate(places):
            while not state.places[actor].request.notes("ready"):
                if state.places[actor].request.verb == "done":
                    raise InternalError("actor ended before it was ready", actor=place.name)
                state = self._step(state, actor, "done")
        return self._settle(state._replace(faults=scene.faults, naps=scene.naps))

    def choices(self, state: State) -> list[Choice]:
        """Return every step that may come next, but for orders that make no difference."""
        awake = [a for a in range(len(state.places)) if a not in state.asleep]
        for actor in awake:
            # A look at the clock matters to nobody else: it comes now, or after the next nap.
            if state.places[actor].request.verb == "clock":
                return [Choice(actor), Choice(actor, "asleep")]
        found = [
            Choice(actor, outcome)
            for actor in awake
            for outcome in self._outcomes(state, state.places[actor].request)
        ]
        found += [Choice(late=request) for request in sorted(state.late, key=str)]
        return [*found, Choice()] if state.naps else found

    def apply(self, state: State, choice: Choice) -> State:
        """Return the state after a step.

        Raises:
            Violation: It breaks an invariant.
        """
        if choice.late is not None:
            return self._effect(state._replace(late=state.late - {choice.late}), "", choice.late)
        if choice.actor is None:
            state = state._replace(
                now_s=state.now_s + state.naps[0],
                naps=state.naps[1:],
                asleep=frozenset(),
            )
            self.scene.check(state.files, state.now_s, state.ghost)
            return self._settle(state)
        if choice.outcome == "asleep":
            return state._replace(asleep=state.asleep | {choice.actor})
        return self._settle(self._step(state, choice.actor, choice.outcome))

    def describe(self, state: State, choice: Choice) -> str:
        """Return a step as a line of a trace."""
        if choice.late is not None:
            return f"late: {choice.late}"
        if choice.actor is None:
            return f"{state.naps[0]} s pass"
        place = state.places[choice.actor]
        outcome = "" if choice.outcome == "done" else f" -> {choice.outcome}"
        return f"{place.name}: {place.request}{outcome}"

    def _outcomes(self, state: State, request: Request) -> Iterator[str]:
        if request.verb == "done":
            return
        yield "done"
        if not state.faults:
            return
        kinds = self.scene.kinds
        if request.verb in ("create", "put"):
            yield from (kind for kind in ("fail", "late") if kind in kinds)
            if request.verb == "create" and request.path not in state.files and "denied" in kinds:
                yield "denied"
        elif "read" in kinds:
            yield "fail"

    def _step(self, state: State, actor: int, outcome: str) -> State:
        place = state.places[actor]
        request = place.request
        said: Any = FAILED
        if request.verb != "clock":
            event = Event(place.name, request.verb, request, state.now_s)
            state = state._replace(ghost=self.scene.observe(state.ghost, event))
        if outcome == "late":
            state = state._replace(late=state.late | {request})
        elif outcome in ("done", "denied"):
            said = outcome != "denied" and answer(state.files, state.now_s, request, state.made)
            state = self._effect(state, place.name, request)
        following, fresh = place.after(said)
        self.runs += fresh
        return state._replace(
            places=(*state.places[:actor], following, *state.places[actor + 1 :]),
            faults=state.faults - (outcome != "done"),
        )

    def _effect(self, state: State, actor: str, request: Request) -> State:
        files = state.files
        there = request.path in files
        if request.verb == "put" or (request.verb == "create" and not there):
            verb, changed = "made", {**files, request.path: request.data}
        elif request.verb == "delete" and there:
            verb = "gone"
            changed = {path: data for path, data in files.items() if path != request.path}
        else:
            return state
        event = Event(actor, verb, request, state.now_s)
        ghost = self.scene.observe(state.ghost, event)
        content = self._content(changed)
        self.scene.check(content, state.now_s, ghost)
        made = state.made
        if is_dated(request.path):
            made = frozenset(one for one in made if one[0] != request.path)
            made |= {(request.path, state.now_s)} if verb == "made" else set()
        return state._replace(files=content, made=made, ghost=ghost)

    def _settle(self, state: State) -> State:
        # Notes matter to the ghost alone, and the clock stands still once no nap is left.
        eager = ("note", "nap") if state.naps else ("note", "nap", "clock")
        for actor in range(len(state.places)):
            while actor not in state.asleep and state.places[actor].request.verb in eager:
                if state.places[actor].request.verb == "nap":
                    state = state._replace(asleep=state.asleep | {actor})
                state = self._step(state, actor, "done")
        return state

    def _content(self, files: Mapping[str, bytes]) -> Files:
        return self._contents.setdefault(frozenset(files.items()), Files(files))


def explore(scene: Scene, *, most_states: int = 2_000_000) -> Explored:
    """Go through every order of steps.

    Args:
        scene: What is explored.
        most_states: Give up beyond so many states.

    Raises:
        Violation: Some order breaks an invariant, or makes an actor fail; the text shows it.
        InternalError: The scene is too large, or an actor is not deterministic.
    """
    model = Model(scene)
    state = model.start()
    left = iter(model.choices(state))
    seen = {hash(state)}  # 64 bits of each: a chance of 1 in a million to miss one of 10^7
    path: list[tuple[State, Choice, Iterator[Choice]]] = []
    steps = ends = 0
    while True:
        choice = next(left, None)
        if choice is None:
            if not path:
                return Explored(len(seen), steps, model.runs, ends)
            state, _, left = path.pop()
            continue
        steps += 1
        try:
            following = model.apply(state, choice)
        except (Violation, SegstoreError) as error:
            lines = [model.describe(before, step) for before, step, _ in path]
            lines.append(model.describe(state, choice))
            raise Violation("\n  ".join([str(error), *lines])) from None
        digest = hash(following)
        if digest in seen:
            continue
        if len(seen) >= most_states:
            raise InternalError("scene is too large", states=len(seen))
        seen.add(digest)
        path.append((state, choice, left))
        state, found = following, model.choices(following)
        ends += not found
        left = iter(found)


class Play:
    """One order of steps, as a test tells it.

    Args:
        scene: Its `naps` and `faults` don't count here: the test says what happens.
    """

    def __init__(self, scene: Scene) -> None:
        # A nap that is left keeps every look at the clock a step of its own.
        self._scene = dataclasses.replace(scene, naps=(0,), faults=1)
        self._model = Model(self._scene)
        self.state = self._model.start()
        self.trace: list[str] = []

    @property
    def ghost(self) -> Any:
        """What the checker knows now."""
        return self.state.ghost

    def asks(self, name: str) -> Request:
        """Return what an actor asks next."""
        return self.state.places[self._actor(name)].request

    def step(self, name: str, outcome: str = "done") -> None:
        """Let one request of an actor have an outcome; raises Violation."""
        self._apply(Choice(self._actor(name), outcome))

    def run(self, name: str, *, until: str | None = None) -> None:
        """Let an actor go on to its end, or until it asks for ``verb path``; raises Violation."""
        while (request := self.asks(name)).verb != "done" and str(request) != until:
            self.step(name)
        if until is not None and self.asks(name).verb == "done":
            raise InternalError("actor never asked that", actor=name, request=until)

    def sleep(self, seconds: int) -> None:
        """Let time pass for all; raises Violation."""
        self.state = self.state._replace(naps=(seconds, 0))
        self._apply(Choice())

    def land(self) -> None:
        """Let every late effect happen; raises Violation."""
        for request in sorted(self.state.late, key=str):
            self._apply(Choice(late=request))

    def perform(self, name: str, program: Program) -> None:
        """Let another actor run from start to end while all others stand still; raises Violation.

        When it sleeps, time passes for all.
        """

        def ask(request: Request) -> Any:
            event = Event(name, request.verb, request, self.state.now_s)
            self.state = self.state._replace(ghost=self._scene.observe(self.ghost, event))
            if request.verb == "nap":
                self.sleep(int(str(request.payload[0])))
                return None
            said = answer(self.state.files, self.state.now_s, request, self.state.made)
            self.state = self._model._effect(self.state, name, request)  # noqa: SLF001
            return said

        program(Actor(name, ask, self._scene.page))

    def _actor(self, name: str) -> int:
        return list(self._scene.actors).index(name)

    def _apply(self, choice: Choice) -> None:
        self.trace.append(self._model.describe(self.state, choice))
        state = self._model.apply(self.state, choice)
        self.state = state._replace(naps=(0,), faults=1)
