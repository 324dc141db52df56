"""Runs on a Ray cluster, behind the same interface as processes of this machine.

Each piece of work is one Ray task. It talks through a mailbox, a small actor beside the driver: progress goes in, and whether
to stop can be asked. A driver that dies takes the mailbox with it, so all work ends. A task whose worker or node dies is
given to Ray again, and its run goes on from its last checkpoint.

Where every node sees the run directories under the same path, runs are written there, and their locks are held where they run.
Elsewhere the driver holds the lock, and the directory is shipped: to the node when a run begins, home when a checkpoint is
written and when it ends.

A node is looked at before it runs anything: the same versions, the data. One that does not fit is named and left out.
"""

from __future__ import annotations

import pickle
import secrets
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from afec.lab.directory import RunDirectory, RunError
from afec.lab.job import BUSY, Job, RunWork
from afec.lab.lock import BusyError
from afec.lab.pool import Message, Work
from afec.lab.ray_node import Errand, versions
from afec.lab.ray_remote import remote_parts
from afec.lab.shipping import ShippingError, pack, unpack
from afec.lab.tensorboard import Board
from afec.whole_files import write_text

__all__ = ["RayPool", "Resources"]

DEATHS = 3  # in a row, without a new checkpoint between them, and a run is given up
NODES_SECONDS = 5.0  # between two looks at which nodes there are
ROOM = 1.2  # of the memory that an earlier run of the same kind has held
INSPECT_SECONDS = 300.0


@dataclass(frozen=True)
class Resources:
    """What a run reserves on a node."""

    cpus: float = 1.0
    gpus: float = 0.0
    memory: Callable[[Job], float | None] = lambda job: None
    """In megabytes, where an earlier run of the same kind says it."""


@dataclass
class _Running:
    """A piece of work that Ray was given."""

    index: int
    work: Work
    attempt: str = ""
    task: Any = None
    host: str = ""
    """Where it runs, once it has begun."""
    node: str = ""
    deaths: int = 0
    saved: object = None
    """The checkpoint that it had when it last died."""
    lock: ExitStack | None = None
    """Holds the lock of a run that is shipped home."""


@dataclass
class _Nodes:
    """What is known of the nodes of the cluster."""

    looked: float = -NODES_SECONDS
    room: int = 0
    """How many runs there is room for."""
    fine: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    """Those that run nothing, and why."""


class RayPool:
    """Places for work on the nodes of a Ray cluster that this process is connected to.

    Args:
        ray: the package.
        resources: what each piece of work reserves.
        workers: the most at once; 0: as many as there is room for.
        root: where the run directories are.
        check: what every node has to be able to do, before it is given anything.
        ship: whether run directories are shipped home; by default where a node does not see `root`.
    """

    def __init__(
        self,
        ray: Any,
        resources: Resources | None = None,
        workers: int = 0,
        *,
        root: Path | None = None,
        check: Callable[[], object] = bool,
        ship: bool | None = None,
    ) -> None:
        self.ray, self.resources, self.workers = ray, resources or Resources(), workers
        self.session = f"afec-{secrets.token_hex(6)}"
        self.running: dict[str, _Running] = {}
        """By attempt."""
        self.waiting: list[_Running] = []
        """For the lock of a run that is shipped home."""
        self.ready: deque[Message] = deque()
        self.stopping = False
        self.nodes = _Nodes()
        self.check, self.root = check, None if root is None else root.absolute()
        self._visit, self._mailbox_class = remote_parts(ray)
        self.mailbox: Any = None
        self._letters: Any = None  # the answer of the mailbox that is waited for
        self.ship = bool(ship)
        self._find_nodes(ship)
        self._open_mailbox()

    # -- the interface of a pool ----------------------------------------------------------------------------------

    @property
    def busy(self) -> int:
        """How many pieces of work are under way; some of them may wait for a place in the cluster."""
        return len(self.running) + len(self.waiting) + len(self.ready)

    @property
    def free(self) -> int:
        """How many more can be started: some more than there is room for, so that no place waits for this process."""
        room = self.nodes.room
        most = min(self.workers, room) if self.workers else room + 1 + room // 4
        return max(0, max(1, most) - self.busy)

    def start(self, index: int, work: Work) -> None:
        """Give it to Ray."""
        running = _Running(index, work)
        if self.ship and isinstance(work, RunWork):
            self.waiting.append(running)
            self._lock(running)
        else:
            self._submit(running)

    def poll(self, timeout: float) -> Iterator[Message]:
        """The messages since the last call; waits for the first one, but no longer than `timeout` seconds."""
        self._look_at_nodes()
        for running in list(self.waiting):
            self._lock(running)
        while self.ready:
            yield self.ready.popleft()
        tasks = {one.task: one for one in self.running.values()}
        watched = [self._letters, *tasks]
        self.ray.wait(watched, num_returns=1, timeout=timeout)
        found, _ = self.ray.wait(watched, num_returns=len(watched), timeout=0)
        if self._letters in found:
            self._open_letters()
        for task in found:
            if task in tasks:
                self._ended(tasks[task])
        while self.ready:
            yield self.ready.popleft()

    def stop(self) -> None:
        """Ask all work to end, and return when it has ended; interrupted, end it at once."""
        if self.stopping:
            return
        self.stopping = True
        try:
            for running in self.waiting:
                _release(running)
            self.waiting = []
            if self.running:
                self.ray.get(self.mailbox.stop.remote())
                for running in self.running.values():
                    if not running.node:  # it has no place yet, and needs none any more
                        self.ray.cancel(running.task)
            while self.running:
                list(self.poll(1.0))
        except BaseException:  # asked again to stop: at once
            for running in self.running.values():
                with suppress(Exception):
                    self.ray.cancel(running.task, force=True)
                _release(running)
            raise
        finally:
            self._leave()

    # -- nodes ----------------------------------------------------------------------------------------------------

    def _find_nodes(self, ship: bool | None) -> None:
        """Look at every node that there is now."""
        alive = {node["NodeID"]: node for node in self.ray.nodes() if node["Alive"]}
        with self._token() as (token, text):
            asked = {
                key: self._visit_of(key).remote("inspect", versions(), pickle.dumps(self.check), token, text)
                for key in alive
            }
            for key, answer in asked.items():
                refusal, sees = self._inspected(alive[key], answer)
                if refusal:
                    self.nodes.refused[key] = refusal
                else:
                    self.nodes.fine.add(key)
                    self.ship = self.ship or (ship is None and self.root is not None and not sees)
        if not self.nodes.fine:
            raise RunError("no node of the Ray cluster can run this: " + "; ".join(self.nodes.refused.values()))
        for refusal in self.nodes.refused.values():
            warnings.warn(f"left out: {refusal}", RuntimeWarning, stacklevel=2)
        self._look_at_nodes()
        if not self.nodes.room:
            wanted = f"{self.resources.cpus:g} CPUs and {self.resources.gpus:g} GPUs"
            raise RunError(f"no node of the Ray cluster has {wanted} for a run; give fewer with --cpus and --gpus")

    def _inspected(self, node: dict[str, Any], answer: Any) -> tuple[str, bool]:
        name = f"node {node['NodeManagerHostname']} ({node['NodeManagerAddress']}, {node['NodeID'][:8]})"
        try:
            kind, content = self.ray.get(answer, timeout=INSPECT_SECONDS)
        except Exception as error:
            return f"{name} does not answer ({type(error).__name__})", False
        if kind == "refused":
            return f"{name} {content}", False
        problem, sees = content
        return (f"{name}: {problem}" if problem else ""), sees

    def _visit_of(self, node: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        return self._visit.options(num_cpus=0, max_retries=0, scheduling_strategy=strategy)

    def _look_at_nodes(self) -> None:
        """How much room there is: nodes come and go."""
        if time.monotonic() - self.nodes.looked < NODES_SECONDS:
            return
        self.nodes.looked, self.nodes.room = time.monotonic(), 0
        for node in self.ray.nodes():
            if node["Alive"] and node["NodeID"] not in self.nodes.refused:
                has, needs = node["Resources"], self.resources
                rooms = [has.get("CPU", 0) // needs.cpus] if needs.cpus else [len(self.running) + 1]
                rooms += [has.get("GPU", 0) // needs.gpus] if needs.gpus else []
                self.nodes.room += int(min(rooms))

    @contextmanager
    def _token(self) -> Iterator[tuple[Path, str]]:
        """A file beside the run directories, which a node that sees them sees as well."""
        text, token = secrets.token_hex(8), (self.root or Path("/nonexistent")) / f".{self.session}"
        if self.root is None:
            yield token, text
            return
        write_text(token, text)
        try:
            yield token, text
        finally:
            token.unlink(missing_ok=True)

    # -- work -----------------------------------------------------------------------------------------------------

    def _submit(self, running: _Running) -> None:
        running.attempt, running.node = f"{running.index}-{secrets.token_hex(4)}", ""
        work, options = running.work, self._options(running.work)
        parcel = pack(work.directory, before=True) if running.lock and isinstance(work, RunWork) else None
        if isinstance(work, RunWork):
            work = RunWork(work.job, work.root.absolute(), work.board and work.board.absolute(), work.patient)
        errand = Errand(running.attempt, work, Path.cwd(), parcel, self.session)
        packed = self.ray.cloudpickle.dumps(errand)
        running.task = self._visit.options(**options).remote("carry_out", versions(), packed, self.mailbox)
        self.running[running.attempt] = running

    def _options(self, work: Work) -> dict[str, Any]:
        needs = self.resources
        options: dict[str, Any] = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "max_retries": 0}
        if isinstance(work, RunWork) and (megabytes := needs.memory(work.job)):
            most = max(node["Resources"].get("memory", 0) for node in self.ray.nodes() if node["Alive"])
            options["memory"] = int(min(ROOM * megabytes * 2**20, most))
        if self.nodes.refused:
            options["label_selector"] = {"ray.io/node-id": f"!in({','.join(self.nodes.refused)})"}
        return options

    def _lock(self, running: _Running) -> None:
        """Take the lock of a run that is shipped home, and begin; or say who has it."""
        assert isinstance(running.work, RunWork)
        stack, directory = ExitStack(), running.work.directory
        try:
            stack.enter_context(directory.locked(patient=False))
        except BusyError as holder:
            if running.work.patient:
                self.ready.append(Message("waiting", running.index, str(holder)))
            else:
                self.waiting.remove(running)
                self.ready.append(Message("result", running.index, BUSY))
            return
        self.waiting.remove(running)
        running.lock = stack
        if directory.done:  # another driver has done it meanwhile
            _release(running)
            self.ready.append(Message("result", running.index, None))
        else:
            self._submit(running)

    def _ended(self, running: _Running) -> None:
        """A task is over, however it ended."""
        if running.attempt not in self.running:
            return
        try:
            kind, content = self.ray.get(running.task)
        except self.ray.exceptions.TaskCancelledError:
            self._finish(running)
            return
        except self.ray.exceptions.RayTaskError as error:  # not the run's fault: it tells its own
            self._finish(running, Message("died", running.index, f"its worker could not do it:\n{error}"))
            return
        except (self.ray.exceptions.RayError, OSError) as error:
            self._died(running, error)
            return
        if kind == "refused":  # a node that has joined since
            node, reason = content
            self.nodes.refused[node] = reason
            warnings.warn(f"left out: node {reason}", RuntimeWarning, stacklevel=2)
            self._again(running, reason)
            return
        ended, result, parcel = content
        if parcel is not None:
            self._arrived(running, parcel)
        if ended == "stopped" and not self.stopping:  # its mailbox was lost, and there is another one now
            self._again(running, "it was cut off from this process")
            return
        self._finish(running, Message("result", running.index, result))

    def _died(self, running: _Running, error: Exception) -> None:
        """Its worker or node has died: again, from its last checkpoint, unless it dies again and again."""
        alive = {node["NodeID"] for node in self.ray.nodes() if node["Alive"]}
        told = isinstance(error, self.ray.exceptions.NodeDiedError)  # sooner, it may be, than the list of nodes knows
        what = "node" if told or (running.node and running.node not in alive) else "worker"
        reason = f"its {what}{f' {running.host}' if running.host else ''} died ({_short(error)})"
        saved = _saved(running.work)
        if what == "worker":  # a node that dies is not the fault of what ran there
            running.deaths = 1 if saved != running.saved else running.deaths + 1
            running.saved = saved
        if self.stopping or running.deaths >= DEATHS:
            times = f", {running.deaths} times without a checkpoint between them" if running.deaths > 1 else ""
            self._finish(running, Message("died", running.index, reason + times))
        else:
            self.nodes.looked = -NODES_SECONDS
            self._again(running, reason)

    def _again(self, running: _Running, reason: str) -> None:
        del self.running[running.attempt]
        if self.stopping:
            _release(running)
            return
        self.ready.append(Message("waiting", running.index, f"another place: {reason}"))
        self._submit(running)

    def _finish(self, running: _Running, message: Message | None = None) -> None:
        del self.running[running.attempt]
        _release(running)
        if message is not None:
            self.ready.append(message)

    # -- messages -------------------------------------------------------------------------------------------------

    def _open_mailbox(self) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(node_id=self.ray.get_runtime_context().get_node_id(), soft=True)
        self.mailbox = self._mailbox_class.options(num_cpus=0, scheduling_strategy=here).remote()
        self._letters = self.mailbox.take.remote()

    def _open_letters(self) -> None:
        try:
            letters = self.ray.get(self._letters)
        except (
            self.ray.exceptions.RayError
        ):  # it has died; what it had is lost, and so are those that talked through it
            self._open_mailbox()
            return
        self._letters = self.mailbox.take.remote()
        for attempt, kind, content in letters:
            running = self.running.get(attempt)
            if running is None:  # of an attempt that was given up
                continue
            if kind == "began":
                running.host, running.node = content
            elif kind == "parcel":
                with suppress(Exception):  # its node has died before it could be fetched
                    self._arrived(running, self.ray.get(content[0], timeout=INSPECT_SECONDS))
            else:
                self.ready.append(Message(kind, running.index, content))

    def _arrived(self, running: _Running, parcel: Any) -> None:
        """A run directory has come home."""
        assert isinstance(running.work, RunWork)
        assert running.lock is not None, "the driver holds the lock"
        directory = running.work.directory
        try:
            unpack(parcel, directory)
        except ShippingError as error:
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)
            return
        if running.work.board is not None:
            with Board(running.work.board, directory) as log:
                log.update(directory)

    def _leave(self) -> None:
        """Leave nothing behind on the nodes."""
        with suppress(Exception):
            if self.ship:
                alive = [node["NodeID"] for node in self.ray.nodes() if node["Alive"]]
                visits = [self._visit_of(key).remote("clean", versions(), self.session) for key in alive]
                self.ray.wait(visits, num_returns=len(visits), timeout=10)
            self.ray.kill(self.mailbox)


def _release(running: _Running) -> None:
    if running.lock is not None:
        running.lock.close()
        running.lock = None


def _saved(work: Work) -> object:
    """What tells one checkpoint of a run from the next."""
    if not isinstance(work, RunWork):
        return None
    directory: RunDirectory = work.directory
    with suppress(OSError):
        found = directory.checkpoint.stat()
        return found.st_mtime_ns, found.st_size
    return None


def _short(error: Exception) -> str:
    text = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {text[0]}"[:200]
