"""A local disk in simulation: `os` for the engine's own storage of local files.

Each system call that changes something is a moment at which it may fail, its process may end, or
the power may go: then a file that was not synced is cut or empty, and a name that its folder was
not synced with is as it was before, unless that was long enough ago for the system to have written
it by itself.
"""

import errno
import os
import posixpath
import stat
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from sim_world import Killed, Process

from segstore_ds.storage import local_files
from segstore_ds.storage.checked import CheckedStorage
from segstore_ds.storage.local import LocalStorage
from segstore_ds.storage.locations import Location

if TYPE_CHECKING:
    from sim_store import Store

WRITTEN_BACK_US = 30_000_000  # after so long all content and all names are on the disk
SLOW_S = (0.1, 1.0, 10.0, 61.0)
_DEVICES = count(1)


class Node:
    """A file or a folder, and what a power cut would make of it.

    Attributes:
        names: The entries of a folder; None for a file.
        kept: The content of a file that is on the disk, unless that is all of it; it is not since
            `since_us`.
        was: For the names of a folder that are not on the disk: what they stood for there, and when
            that changed.
        failed: A sync of the file failed: later ones do nothing.
    """

    def __init__(self, number: int, now_us: int, *, folder: bool) -> None:
        self.number = number
        self.names: dict[str, Node] | None = {} if folder else None
        self.data = bytearray()
        self.kept: bytes | None = None
        self.was: dict[str, tuple[Node | None, int]] = {}
        self.changed_us = self.since_us = now_us
        self.links = 1
        self.failed = False

    def cut_power(self, now_us: int, chance: Any) -> None:
        """Become what is left after a power cut."""
        recent_us = now_us - WRITTEN_BACK_US
        if self.kept is not None:
            if self.since_us > recent_us and chance.random() < 0.7:
                written = bytes(self.data[: chance.randrange(len(self.data) + 1)])
                self.data[:] = chance.choice((self.kept, written, b"\0" * len(written)))
            self.kept = None
        for name, (before, since_us) in self.was.items():
            if since_us > now_us - WRITTEN_BACK_US and chance.random() < 0.7:
                assert self.names is not None
                self.names.pop(name, None)
                if before is not None:
                    self.names[name] = before
        self.was.clear()
        for node in (self.names or {}).values():
            node.cut_power(now_us, chance)


class Disk(MutableMapping[str, tuple[bytes, int]]):
    """The files of a machine: as the engine's `os`, and as a mapping of paths for who looks on."""

    def __init__(self, store: "Store") -> None:
        self.store = store
        self.world = store.world
        self.numbers = count(2)
        self.root = Node(1, self.world.now_us, folder=True)
        self.device = next(_DEVICES)
        self.open_files: dict[int, tuple[Node, list[int]]] = {}
        self.os = SimOS(self)

    def find(self, path: str) -> Node:
        """Return what has a path; raises FileNotFoundError or NotADirectoryError."""
        node = self.root
        for name in filter(None, path.split("/")):
            if node.names is None:
                raise NotADirectoryError(errno.ENOTDIR, "simulated", path)
            if name not in node.names:
                raise FileNotFoundError(errno.ENOENT, "simulated", path)
            node = node.names[name]
        return node

    def place(self, path: str) -> tuple[Node, str]:
        """Return the folder of a path, and its name in it."""
        above, name = posixpath.split(path)
        folder = self.find(above)
        if folder.names is None:
            raise NotADirectoryError(errno.ENOTDIR, "simulated", path)
        return folder, name

    def name(self, path: str, node: Node | None) -> None:
        """Have a path stand for a node, or for nothing; not synced."""
        folder, name = self.place(path)
        assert folder.names is not None
        before = folder.names.pop(name, None)
        folder.was.setdefault(name, (before, self.world.now_us))
        if node is not None:
            folder.names[name] = node

    def plant(self, path: str) -> None:
        """Make an empty file, and the folders above it, that a power cut leaves."""
        node, names = self.root, path.strip("/").split("/")
        for depth, name in enumerate(names, 1):
            assert node.names is not None
            if name not in node.names:
                node.names[name] = self.new(folder=depth < len(names))
            node.was.pop(name, None)
            node = node.names[name]

    def new(self, *, folder: bool = False) -> Node:
        """Return a node without a name."""
        return Node(next(self.numbers), self.world.now_us, folder=folder)

    def change(self, node: Node, start: int, data: Any) -> None:
        """Write into a file; not synced."""
        if node.kept is None:
            node.kept, node.since_us = bytes(node.data), self.world.now_us
        node.changed_us = self.world.now_us
        node.data[start : start + len(data)] = data

    def cut_power(self) -> None:
        """End all processes, and keep what is on the disk."""
        self.world.note("the power is cut")
        chance = self.world.chance_of(f"power {self.world.steps}")
        self.root.cut_power(self.world.now_us, chance)
        self.open_files.clear()
        local_files._JOBS.clear()
        for process in self.world.processes:
            if process.threads:
                process.kill()

    # --- as a mapping ------------------------------------------------------------------------

    def __getitem__(self, path: str) -> tuple[bytes, int]:
        """Return the content and the time of a file."""
        try:
            node = self.find(path)
        except OSError:
            raise KeyError(path) from None
        return bytes(node.data), node.changed_us

    def __setitem__(self, path: str, value: tuple[bytes, int]) -> None:
        """Give a file other content, as a disk that rots does."""
        node = self.find(path)
        node.data[:], node.changed_us, node.kept = value[0], value[1], None

    def __delitem__(self, path: str) -> None:
        """Lose a file."""
        folder, name = self.place(path)
        assert folder.names is not None
        del folder.names[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the paths of all files."""
        waiting = [("", self.root)]
        while waiting:
            path, node = waiting.pop()
            if node.names is None:
                yield path
            waiting += [(f"{path}/{name}", each) for name, each in (node.names or {}).items()]

    def __len__(self) -> int:
        """Return the number of files."""
        return sum(1 for _ in self)


class SimOS:
    """What the engine uses of the module `os`."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._descriptors = count(3)
        self.path = SimpleNamespace(
            dirname=posixpath.dirname,
            basename=posixpath.basename,
            isdir=lambda path: self._has(path) and self._disk.find(path).names is not None,
            lexists=self._has,
        )

    def __getattr__(self, name: str) -> Any:
        """Return a constant of `os`."""
        if name.startswith("O_"):
            return getattr(os, name)
        raise AttributeError(name)

    def getpid(self) -> int:
        return self._disk.world.processes.index(self._process())

    def _process(self) -> Process:
        current = self._disk.world.current
        if current is None or not current.process.alive:
            raise Killed  # a process that has ended collects its garbage
        return current.process

    def _has(self, path: str) -> bool:
        self._process()
        try:
            self._disk.find(path)
        except OSError:
            return False
        return True

    def _call(self, verb: str, path: str, effect: Callable[[], Any], *, took: bool = False) -> Any:
        """Make a system call: let time pass, be struck before or after its effect, or not."""
        process, store = self._process(), self._disk.store
        world, chance = store.world, process.chance
        kind = store.faults.draw(chance, verb) if chance.random() < store.disk_share else ""
        if kind:
            world.note(f"{process.name}: {verb} {path} -> {kind}")
        after = bool(kind) and chance.random() < 0.5
        world.sleep(store.latency_s(chance, "put" if took else "get"))
        if kind == "slow":
            world.sleep(chance.choice(SLOW_S))
        if not after:
            self._strike(process, kind)
        if kind in ("fail", "late"):
            if verb == "write":
                effect(half=True)
            raise OSError(errno.EIO, "simulated: input or output error", path)
        for spell in store.faults.spells:
            if (failure := spell.strike("put" if verb in _CHANGES else verb, path, chance)) and (
                spell.kind != "throttled"
            ):
                if verb == "write":
                    effect(half=True)
                raise failure
        answer = effect()
        if after:
            self._strike(process, kind)
        if kind == "lost":
            raise OSError(errno.ESTALE, "simulated: the answer was lost", path)
        if kind == "denied":
            raise FileExistsError(errno.EEXIST, "simulated: another try was answered", path)
        return answer

    def _strike(self, process: Process, kind: str) -> None:
        if kind == "power":
            self._disk.cut_power()
            raise Killed
        if kind in ("pause", "kill"):
            self._disk.store.strike(process, kind)

    # --- files -------------------------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0) -> int:  # noqa: ARG002
        def make() -> int:
            if flags & os.O_CREAT and not self._has(path):
                self._disk.name(path, self._disk.new())
            elif flags & os.O_EXCL:
                raise FileExistsError(errno.EEXIST, "simulated", path)
            node = self._disk.find(path)
            if node.names is None and flags & os.O_DIRECTORY:
                raise NotADirectoryError(errno.ENOTDIR, "simulated", path)
            descriptor = next(self._descriptors)
            self._disk.open_files[descriptor] = node, [0]
            return descriptor

        found: int = self._call("open" if flags & os.O_CREAT else "get", path, make)
        return found

    def close(self, descriptor: int) -> None:
        self._disk.open_files.pop(descriptor, None)

    def pread(self, descriptor: int, size: int, start: int) -> bytes:
        process = self._process()
        data = bytes(self._disk.open_files[descriptor][0].data[start : start + size])
        store = self._disk.store
        kind = store.faults.draw(process.chance, "get_range") if data else ""
        if kind == "flip":
            process.spoiled += 1
        elif kind != "cut":  # which is a short read
            return data
        return store.spoil(process.chance, kind, data) or data[:1]

    def write(self, descriptor: int, data: Any) -> int:
        place = self._disk.open_files[descriptor][1]
        written = self._write(descriptor, [data], place[0])
        place[0] += written
        return written

    def writev(self, descriptor: int, pieces: Iterable[Any]) -> int:
        place = self._disk.open_files[descriptor][1]
        written = self._write(descriptor, pieces, place[0])
        place[0] += written
        return written

    def pwritev(self, descriptor: int, pieces: Iterable[Any], start: int) -> int:
        return self._write(descriptor, pieces, start)

    def _write(self, descriptor: int, pieces: Iterable[Any], start: int) -> int:
        node, data = self._disk.open_files[descriptor][0], b"".join(pieces)

        def write(*, half: bool = False) -> int:
            part = data[: len(data) // 2] if half else data
            node.data.extend(bytes(max(start - len(node.data), 0)))
            self._disk.change(node, start, part)
            return len(part)

        written: int = self._call("write", f"file {node.number}", write)
        return written

    def copy_file_range(self, source: int, target: int, most: int, *, offset_src: int) -> int:
        data = self._disk.open_files[source][0].data[offset_src : offset_src + most]
        return self.write(target, bytes(data))

    def fsync(self, descriptor: int) -> None:
        node = self._disk.open_files[descriptor][0]

        def sync() -> None:
            if not node.failed:
                node.kept = None
                node.was.clear()

        try:
            self._call("fsync", f"node {node.number}", sync, took=True)
        except OSError:
            node.failed = node.names is None
            raise

    # --- names -------------------------------------------------------------------------------

    def stat(self, path: str) -> Any:
        self._process()
        return self._status(self._disk.find(path))

    lstat = stat

    def fstat(self, descriptor: int) -> Any:
        return self._status(self._disk.open_files[descriptor][0])

    def _status(self, node: Node) -> Any:
        kind = stat.S_IFREG if node.names is None else stat.S_IFDIR
        return SimpleNamespace(
            st_mode=kind | 0o644,
            st_size=len(node.data),
            st_mtime_ns=node.changed_us * 1000,
            st_dev=self._disk.device,
            st_ino=node.number,
            st_nlink=node.links,
        )

    def link(self, source: str, target: str) -> None:
        def make() -> None:
            node = self._disk.find(source)
            if self._has(target):
                raise FileExistsError(errno.EEXIST, "simulated", target)
            self._disk.name(target, node)
            node.links += 1

        self._call("create", target, make)

    def replace(self, source: str, target: str) -> None:
        def move() -> None:
            node = self._disk.find(source)
            self._disk.name(target, node)
            self._disk.name(source, None)

        self._call("rename", target, move)

    def unlink(self, path: str) -> None:
        def remove() -> None:
            node = self._disk.find(path)
            if node.names is not None:
                raise IsADirectoryError(errno.EISDIR, "simulated", path)
            node.links -= 1
            self._disk.name(path, None)

        self._call("delete", path, remove)

    def mkdir(self, path: str) -> None:
        def make() -> None:
            if self._has(path):
                raise FileExistsError(errno.EEXIST, "simulated", path)
            self._disk.name(path, self._disk.new(folder=True))

        self._call("mkdir", path, make)

    def rmdir(self, path: str) -> None:
        def remove() -> None:
            if self._disk.find(path).names:
                raise OSError(errno.ENOTEMPTY, "simulated", path)
            self._disk.name(path, None)

        self._call("delete", path, remove)

    @contextmanager
    def scandir(self, path: str) -> Iterator[Iterable[Any]]:
        def look() -> list[Any]:
            node = self._disk.find(path)
            if node.names is None:
                raise NotADirectoryError(errno.ENOTDIR, "simulated", path)
            return [self._entry(path, name, each) for name, each in node.names.items()]

        yield iter(self._call("list", path, look))

    def _entry(self, folder: str, name: str, node: Node) -> Any:
        return SimpleNamespace(
            name=name,
            path=f"{folder.rstrip('/')}/{name}",
            is_dir=lambda *, follow_symlinks: node.names is not None,  # noqa: ARG005
            stat=lambda: self._status(node),
        )


_CHANGES = ("open", "write", "create", "mkdir")  # what a full disk refuses


class SimFiles(LocalStorage):
    """One process's view of a folder of the disk: the engine's own storage of local files."""

    def __init__(self, location: Location, store: "Store", process: Process) -> None:
        super().__init__(location)
        self.store = store
        self.process = process

    def __reduce__(self) -> Any:
        raise AssertionError("a storage of the simulation stays in its process")

    def sibling(self, url: str) -> CheckedStorage:
        return self.store.connect(self.process, url)

    def outer(self) -> CheckedStorage | None:
        outer, _, _ = self.location.url.rpartition("/")
        return None if outer.endswith("/") else self.sibling(outer)

    def rights(self) -> None:
        return None  # the read cache is the real process's, and would be shared by all actors

    def run(self, verb: str, path: str, work: Any, *args: Any, **how: Any) -> Any:
        self.store.requests += 1
        self.store.world.note(f"{self.process.name}: {verb} {self.location.path}/{path}")
        return super().run(verb, path, work, *args, **how)
