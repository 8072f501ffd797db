"""Explores every interleaving of a few actors that run real code over one in-memory storage.

An actor is a function over a `Storage` and a `Clock`. Each request to either is a step. The order
of steps, the failures and the naps are choices; `explore` tries all of them. A state of the whole
model that was met before is not explored again, so the cost grows with the number of states, not of
schedules.

A read that no other actor can change any more is made at once, for its order among the steps of
others makes no difference. What others may still write is known from what they wrote in the orders
that were tried: where more comes to light, `explore` goes back to the states that relied on less.

Time passes only in naps. A nap may come anywhere: between two steps of the actors, or between two
reads of the clock. An actor that sleeps long waits for a nap.

At most `faults` requests fail. A failed put has one of three outcomes: no effect (``fail``); an
error now and the effect at any later time, also at once (``late``); the effect, but the answer
"taken" (``denied``), which happens if a client repeats requests on its own. Other requests can only
``fail``.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from actors import FAILED, Actor, Place, Program, Request, answer

from segstore_ds.errors import InternalError, SegstoreError
from segstore_ds.format import names


class Violation(AssertionError):  # noqa: N818 - what a checker finds is no failure of its own
    """An invariant does not hold; `explore` adds the steps that led there."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event for the ghost: a request before it is carried out, or an effect.

    `verb` is that of the request, or ``made`` or ``gone`` for an object that was created or
    deleted. `actor` is empty for a late effect.
    """

    actor: str
    verb: str
    request: Request
    now_s: int


@dataclass(frozen=True, slots=True)
class Scene:
    """The model to explore.

    Attributes:
        actors: Name -> program. A program notes "ready" once: up to there the actors run one after
            another, in the given order, without choices.
        ghost: The checker's knowledge; hashable.
        observe: Returns the ghost after an event; raises Violation. Whether a read changes
            it may depend on the same actor's earlier events alone.
        check: Called for every new content of the storage, with content, time and ghost.
        files: The initial content of the storage.
        made: When that was made, as in `State`.
        naps: The length of each nap in seconds, in order.
        faults: How many requests may fail.
        kinds: The possible failures: of ``fail``, ``late``, ``denied``, and ``read`` for other
            requests.
        now_s: The initial time.
        dates_commits: Whether commit files have modification times, which a drop reads.
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
    now_s: int = 100_000
    dates_commits: bool = False


@dataclass(frozen=True, slots=True)
class Explored:
    """What `explore` covered: distinct states, steps between them, runs of actors, ends."""

    states: int
    steps: int
    runs: int
    ends: int


class Files(dict[str, bytes]):
    """Content of a storage: immutable, created once per content, and compared by identity."""

    __slots__ = ()
    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__
    __ne__ = object.__ne__


class State(NamedTuple):
    """A state of the whole model.

    `late` holds requests whose effect is still to come; `made` holds the times of dated objects.
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
    """The states of a scene and the steps between them."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.runs = 0
        self._contents: dict[frozenset[tuple[str, bytes]], Files] = {}

    def start(self) -> State:
        """Return the first state, in which every actor is ready."""
        scene = self.scene
        places = tuple(Place.first(name, run) for name, run in scene.actors.items())
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
        """Return every possible next step, without orders that make no difference."""
        awake = [a for a in range(len(state.places)) if a not in state.asleep]
        for actor in awake:
            # A read of the clock affects no other actor: it comes now, or after the next nap.
            if state.places[actor].request.verb == "clock":
                return [Choice(actor), Choice(actor, "asleep")]
        found = [
            Choice(actor, outcome)
            for actor in awake
            for outcome in self._outcomes(state, state.places[actor].request)
        ]
        found += [Choice(late=request) for request in sorted(state.late, key=str)]
        return [*found, Choice()] if state.naps else found

    def free_read(self, state: State) -> tuple[int, State] | None:
        """Make a read that no known step of others can change; return its actor and what follows.

        No note and no nap may follow it, for these are one step with what comes before.
        """
        for actor in range(len(state.places)):
            following = self._after_free(state, actor)
            if following is not None:
                return actor, self._settle(self._moved(state, actor, following), actor)
        return None

    def is_free(self, state: State, actor: int) -> bool:
        """Tell whether an actor's next step is still such a read, as far as is known now."""
        return self._after_free(state, actor) is not None

    def _after_free(self, state: State, actor: int) -> Place | None:
        place = state.places[actor]
        request = place.request
        if not request.reads or actor in state.asleep:
            return None
        if state.faults and "read" in self.scene.kinds:
            return None
        if self._may_change(state, actor, request):
            return None
        event = Event(place.name, request.verb, request, state.now_s)
        if self.scene.observe(state.ghost, event) is not state.ghost:
            return None
        following, fresh = place.after(answer(state.files, state.now_s, request, state.made))
        self.runs += fresh
        return None if following.tells else following

    def _may_change(self, state: State, actor: int, request: Request) -> bool:
        others = [place.changes for other, place in enumerate(state.places) if other != actor]
        if state.late:
            others.append({late.path for late in state.late})
        if request.verb != "list":
            return any(request.path in changes for changes in others)
        folder = f"{request.path}/"
        return any(path.startswith(folder) for changes in others for path in changes)

    def apply(self, state: State, choice: Choice) -> State:
        """Return the state after a step; raises Violation if the step breaks an invariant."""
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
        return self._settle(self._step(state, choice.actor, choice.outcome), choice.actor)

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
        if request.verb == "clock":
            following, fresh = place.after(state.now_s)
            self.runs += fresh
            return self._moved(state, actor, following)
        said: Any = FAILED
        event = Event(place.name, request.verb, request, state.now_s)
        state = state._replace(ghost=self.scene.observe(state.ghost, event))
        if outcome == "late":
            state = state._replace(late=state.late | {request})
        elif outcome in ("done", "denied"):
            said = outcome != "denied" and answer(state.files, state.now_s, request, state.made)
            state = self._effect(state, place.name, request)
        following, fresh = place.after(said)
        self.runs += fresh
        state = state._replace(faults=state.faults - (outcome != "done"))
        return self._moved(state, actor, following)

    def _moved(self, state: State, actor: int, place: Place) -> State:
        return state._replace(places=(*state.places[:actor], place, *state.places[actor + 1 :]))

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
        if is_dated(request.path) or self.scene.dates_commits:
            made = frozenset(dated for dated in made if dated[0] != request.path)
            made |= {(request.path, state.now_s)} if verb == "made" else set()
        return state._replace(files=content, made=made, ghost=ghost)

    def _settle(self, state: State, *actors: int) -> State:
        # Notes matter only to the ghost, and the clock stands still once no nap is left.
        eager = ("note", "nap") if state.naps else ("note", "nap", "clock")

        for actor in actors or range(len(state.places)):
            while actor not in state.asleep and state.places[actor].request.verb in eager:
                if state.places[actor].request.verb == "nap":
                    state = state._replace(asleep=state.asleep | {actor})
                state = self._step(state, actor, "done")
        return state

    def _content(self, files: Mapping[str, bytes]) -> Files:
        return self._contents.setdefault(frozenset(files.items()), Files(files))


def is_dated(path: str) -> bool:
    """Tell whether code under test reads an object's modification time.

    It reads that of the hint just written, for the store's own time, and those of readers' records,
    for their lapse. No other object is dated, which keeps the number of states small.
    """
    if path.startswith(f"{names.READERS_FOLDER}/"):
        return not path.startswith(f"{names.READER_HINTS_FOLDER}/")
    return path == names.HINT_PATH


def explore(
    scene: Scene, *, most_states: int = 2_000_000, most_switches: int | None = None
) -> Explored:
    """Try every order of steps; give up beyond `most_states` states.

    With `most_switches`, only orders in which another actor goes on at most that many times.

    Raises:
        Violation: Some order breaks an invariant or makes an actor fail; the text shows the order.
        InternalError: The scene is too large, or an actor is not deterministic.
    """
    model = Model(scene)
    start = model.start()
    try:
        return _explore(model, start, most_states, most_switches)
    finally:
        for place in start.places:
            place.close()


# The steps to a state, the last one first, each with the state before it.
Trace = tuple["Trace", State, Choice] | None


class Run(NamedTuple):
    """Who took the last step that others can see, and how often that was another than before."""

    actor: int | None = None
    switches: int = 0

    def then(self, state: State, choice: Choice) -> "Run":
        """Return the run after a step of a state."""
        actor = choice.actor
        if actor is None or state.places[actor].request.verb == "clock":
            return self
        return Run(actor, self.switches + (self.actor not in (None, actor)))


def _explore(model: Model, start: State, most_states: int, most_switches: int | None) -> Explored:
    # The fewest switches to a state. 64-bit hashes: chance 1 in a million to miss one of 10^7.
    seen = dict[int, int]()
    assumed: list[tuple[Trace, State, int, Run]] = []
    stack: list[tuple[Trace, State, Choice | None, Run]] = [(None, start, None, Run())]
    steps = ends = 0
    while stack:
        trace, state, choice, run = stack.pop()
        try:
            if choice is not None:
                if most_switches is not None:
                    run = run.then(state, choice)
                    if run.switches > most_switches:
                        continue
                steps, trace = steps + 1, (trace, state, choice)
                state = model.apply(state, choice)
            while (read := model.free_read(state)) is not None:
                actor, following = read
                assumed.append((trace, state, actor, run))
                steps, trace = steps + 1, (trace, state, Choice(actor))
                state = following
        except (Violation, SegstoreError) as error:
            raise Violation("\n  ".join([str(error), *_lines(model, trace)])) from None
        digest = hash((state, run.actor))
        if run.switches < seen.get(digest, run.switches + 1):
            if len(seen) >= most_states:
                raise InternalError("scene is too large", states=len(seen))
            seen[digest] = run.switches
            found = model.choices(state)
            ends += not found
            stack += [(trace, state, choice, run) for choice in reversed(found)]
        if not stack:  # what was relied on before somebody was seen to write it
            wrong = [one for one in assumed if not model.is_free(one[1], one[2])]
            assumed = [one for one in assumed if model.is_free(one[1], one[2])]
            stack += [(before, once, None, run) for before, once, _, run in wrong]
    return Explored(len(seen), steps, model.runs, ends)


def _lines(model: Model, trace: Trace) -> list[str]:
    lines = []
    while trace is not None:
        trace, state, choice = trace
        lines.append(model.describe(state, choice))
    return lines[::-1]


class Play:
    """One order of steps, chosen by a test; the scene's `naps` and `faults` are ignored."""

    def __init__(self, scene: Scene) -> None:
        # A remaining nap keeps every read of the clock a separate step.
        self._scene = dataclasses.replace(scene, naps=(0,), faults=1)
        self._model = Model(self._scene)
        self.state = self._model.start()

    @property
    def ghost(self) -> Any:
        """The checker's knowledge now."""
        return self.state.ghost

    def step(self, name: str, outcome: str = "done") -> None:
        """Give an actor's next request an outcome; raises Violation."""
        self._apply(Choice(self._actor(name), outcome))

    def run(self, name: str, *, until: str | None = None) -> None:
        """Run an actor to its end, or until it asks for ``verb path``; raises Violation."""
        number = self._actor(name)
        while (request := self.state.places[number].request).verb != "done":
            if str(request) == until:
                return
            self.step(name)
        if until is not None:
            raise InternalError("actor never made that request", actor=name, request=until)

    def land(self) -> None:
        """Carry out every late effect; raises Violation."""
        for request in sorted(self.state.late, key=str):
            self._apply(Choice(late=request))

    def sleep(self, seconds: int) -> None:
        """Let time pass for all actors; raises Violation."""
        self.state = self.state._replace(naps=(seconds, 0))
        self._apply(Choice())

    def perform(self, name: str, program: Program) -> None:
        """Run another actor from start to end while all others stand still; raises Violation.

        If it sleeps, time passes for all actors.
        """

        def ask(request: Request) -> Any:
            event = Event(name, request.verb, request, self.state.now_s)
            self.state = self.state._replace(ghost=self._scene.observe(self.ghost, event))
            if request.verb == "nap":
                self.sleep(int(str(request.payload[0])))
                return None
            said = answer(self.state.files, self.state.now_s, request, self.state.made)
            self.state = self._model._effect(self.state, name, request)
            return said

        program(Actor(name, ask))

    def _actor(self, name: str) -> int:
        return list(self._scene.actors).index(name)

    def _apply(self, choice: Choice) -> None:
        state = self._model.apply(self.state, choice)
        self.state = state._replace(naps=(0,), faults=1)
