"""What the checker of the commit protocol knows: the true chain of commits, and what was claimed.

The ghost sees every object appear and vanish, so it knows which files ever were commits of the
stream (each on its parent) and which are leftovers of a writer that slept past a purge.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from actors import WALL_START_US, Actor, Request, answer
from interleaving import Event, Violation

from segstore_ds.errors import FormatError, NotFoundError
from segstore_ds.format.envelope import decode_envelope, encode_envelope
from segstore_ds.format.names import parse_log_name
from segstore_ds.format.root import Epoch, Root, encode_root
from segstore_ds.log.newest import LOG_GRACE_S, ROOT_CODEC
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.status.history import begin_history

NOW_S = 100_000
GONE = "no stream"


@dataclass(frozen=True, slots=True)
class Ghost:
    """The chain holds (transaction, second it landed) by version; purges respect the grace."""

    chain: tuple[tuple[str, int], ...] = ()
    denied: frozenset[str] = frozenset()
    acknowledged: frozenset[str] = frozenset()
    looking: tuple[tuple[str, int], ...] = ()  # actor -> tip when its look began; -1: not yet
    dropped: bool = False  # the last commit was a drop

    @property
    def tip(self) -> int:
        return len(self.chain) - 1

    @property
    def transactions(self) -> list[str]:
        return [transaction for transaction, _ in self.chain]


def first_root(
    transaction: str = "t0",
    stream_id: str = "stream",
    time_us: int = WALL_START_US + NOW_S * 1_000_000,
) -> Root:
    epoch = Epoch(0, 0, "schema", None)
    return begin_history(Root(stream_id, 0, transaction, "", time_us, "create", (epoch,)))


def first_files() -> dict[str, bytes]:
    name = f"log/{0:020d}"
    return {name: encode_envelope(encode_root(first_root())), "log/_latest": f"{0:020d}".encode()}


@functools.cache
def decode(data: bytes) -> Root:
    return ROOT_CODEC.decode(decode_envelope(data, where="model"), "model")


def observe(ghost: Ghost, event: Event) -> Ghost:
    request = event.request
    if event.verb == "note":
        return _noted(ghost, event.actor, *request.payload)
    if event.verb in ("made", "gone"):
        number = parse_log_name(request.path.rpartition("/")[2])
        if number is None:
            return ghost
        if event.verb == "made":
            return _landed(ghost, number, decode(request.data), event.now_s)
        _purged(ghost, number, event.now_s)
        return ghost
    if event.verb != "clock" and (event.actor, -1) in ghost.looking:
        # What a look must not fall behind is the newest version when its first request is sent.
        looking = {*ghost.looking} - {(event.actor, -1)} | {(event.actor, ghost.tip)}
        return replace(ghost, looking=tuple(sorted(looking)))
    return ghost


def _landed(ghost: Ghost, number: int, root: Root, now_s: int) -> Ghost:
    if number <= ghost.tip:
        return ghost  # a leftover: nobody's commit
    if number > ghost.tip + 1:
        raise Violation(f"versions are not dense: {number} came after {ghost.tip}")
    begins = ghost.dropped and not root.parent and root.log_start == number
    if ghost.chain and root.parent != ghost.chain[-1][0] and not begins:
        raise Violation(f"commit {number} has another parent than {ghost.chain[-1][0]}")
    if root.transaction in ghost.transactions:
        raise Violation(f"transaction {root.transaction} was committed twice")
    if root.transaction in ghost.denied:
        raise Violation(f"transaction {root.transaction} was committed after it was given up")
    chain = (*ghost.chain, (root.transaction, now_s))
    return replace(ghost, chain=chain, dropped=root.dropped)


def _purged(ghost: Ghost, number: int, now_s: int) -> None:
    if number >= ghost.tip:
        raise Violation(f"the newest version {number} was deleted")
    if now_s - ghost.chain[number + 1][1] < LOG_GRACE_S:
        raise Violation(f"version {number} was deleted within its grace")


def _noted(ghost: Ghost, actor: str, kind: str, *payload) -> Ghost:
    match kind, payload:
        case "acknowledged", (transaction, version):
            if ghost.transactions.count(transaction) != 1:
                raise Violation(f"acknowledged {transaction} is not in the log")
            if ghost.chain[version][0] != transaction:
                raise Violation(f"acknowledged {transaction} is not version {version}")
            return replace(ghost, acknowledged=ghost.acknowledged | {transaction})
        case ("denied", (transaction,)) | ("outcome", ("not committed", transaction)):
            if transaction in ghost.transactions:
                raise Violation(f"{transaction} was given up but is in the log")
            return replace(ghost, denied=ghost.denied | {transaction})
        case "created", (stream_id,):
            if f"{stream_id}0" not in ghost.transactions:
                raise Violation(f"{actor} was told that it created the stream")
        case "looks", ():
            return replace(ghost, looking=tuple(sorted({*ghost.looking, (actor, -1)})))
        case "saw", (version, transaction):
            return _saw(ghost, actor, version, transaction)
        case "outcome", ("committed", transaction) if transaction not in ghost.transactions:
            raise Violation(f"{transaction} is not in the log, but its outcome says so")
        case _:
            pass
    return ghost


def _saw(ghost: Ghost, actor: str, version: int, transaction: str) -> Ghost:
    began = dict(ghost.looking)[actor]
    if version > ghost.tip or ghost.chain[version][0] != transaction:
        raise Violation(f"{actor} saw version {version} of {transaction}: a leftover")
    if version < began:
        raise Violation(f"{actor} saw version {version} when {began} was the newest")
    looking = tuple(item for item in ghost.looking if item[0] != actor)
    return replace(ghost, looking=looking)


def check_world(files: Mapping[str, bytes], now_s: int, ghost: Ghost) -> None:
    """Whatever lies there, a newcomer finds the newest commit: by the hint, and by listing."""
    if not ghost.chain:
        return
    wanted = GONE if ghost.dropped else ghost.chain[-1][0]
    for how, transaction in zip(("hint", "listing"), _look(files, now_s), strict=True):
        if transaction != wanted:
            raise Violation(f"by {how} a newcomer finds {transaction}, not {wanted}")


@functools.cache
def _look(files: Mapping[str, bytes], now_s: int) -> tuple[str, str]:
    def ask(request: Request):
        return answer(files, now_s, request)

    found = []
    for look in ("open", "reopen"):
        log = StreamLog(Actor("newcomer", ask).storage, clock=Actor("newcomer", ask).clock)
        try:
            found.append(getattr(log, look)().transaction)
        except NotFoundError:
            found.append(GONE)
        except FormatError as error:
            found.append(error.code)
    return found[0], found[1]
