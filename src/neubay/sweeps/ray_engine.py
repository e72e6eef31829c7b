"""The engine of a Ray cluster, or of a Ray that is started here: a job is a task of one core.

Ray runs a task again whose worker or node died, and the run resumes from its directory. Where a
node does not see that directory, rows of the data, worlds and runs go there and come back through
the object store, as arrays.
"""

import hashlib
import os
import platform
import socket
import time
import uuid
import warnings
from pathlib import Path
from typing import Any

from neubay.errors import ConfigError, SweepError, imported
from neubay.runs.files import atomic
from neubay.runs.signals import GRACE
from neubay.sweeps import cores
from neubay.sweeps.data import rows_of
from neubay.sweeps.jobs import Job, Outcome, brought_home, packed, position, unpack
from neubay.sweeps.node import TOKEN, UNSEEN, task
from neubay.sweeps.plan import Plan

RETRIES = 3
"""How often a task is run again whose worker or node died."""
STORE = 200_000_000
"""Bytes of the object store of a Ray that is started here: little goes through it."""
NEEDS = '--engine ray needs Ray: pip install "neubay[sweep]"'


class Ray:
    """Does jobs as Ray tasks.

    Args:
        jobs: tasks at once; by default one for every core of the cluster.
        address: of a cluster, such as 10.0.0.1:6379; none starts Ray here.
        shared: whether nodes see this machine's files; each node finds out, unless it is told not
            to look.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        jobs: int | None = None,
        address: str | None = None,
        shared: bool = True,
    ) -> None:
        self._ray = ray = needed()
        self._plan, self._most = plan, jobs
        self._shared, self._forced = shared, not shared
        self._began = not ray.is_initialized()
        if self._began:
            with warnings.catch_warnings():
                # Ray forks to start its processes, which only call exec; JAX warns of any fork.
                warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
                _connect(ray, address, jobs)
        elif address is not None:
            raise ConfigError(
                f"--address {address}: this process is connected to a Ray already; leave the "
                "address out to use that one, or call ray.shutdown() first"
            )
        self._token, self._name = _signed(plan.directory)
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        options: dict[str, Any] = {"num_cpus": 1, "num_gpus": gpus, "max_retries": RETRIES}
        if plan.threads is not None:  # in processes of their own
            options["runtime_env"] = {"env_vars": cores.threads(plan.threads)}
        self._task = ray.remote(**options)(task)
        self._running: dict[Any, tuple[int, Job]] = {}
        self._submitted = 0
        self._rows: Any = None
        self._worlds: dict[str, Any] = {}

    @property
    def workers(self) -> int:
        resources = self._ray.cluster_resources()
        found = max(int(resources.get("GPU") or resources.get("CPU", 1)), 1)
        return found if self._most is None else min(found, self._most)

    @property
    def room(self) -> int:
        return self.workers - len(self._running)

    def submit(self, job: Job) -> int:
        ticket, self._submitted = self._submitted, self._submitted + 1
        self._send(ticket, job)
        return ticket

    def _send(self, ticket: int, job: Job) -> None:
        reference = self._task.remote(job.text(), self._parcel(job))
        self._running[reference] = ticket, job

    def wait(self, seconds: float) -> list[tuple[int, Outcome]]:
        if not self._running:
            time.sleep(seconds)
            return []
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        if ready:
            everything = len(self._running)
            ready, _ = self._ray.wait(list(self._running), num_returns=everything, timeout=0)
        return [ended for reference in ready if (ended := self._ended(reference)) is not None]

    def stop(self) -> None:
        """Tasks are asked to save and end; a Ray that was started here ends too."""
        for reference in self._running:
            self._ray.cancel(reference)
        if self._running:
            everything = list(self._running)
            self._ray.wait(everything, num_returns=len(everything), timeout=GRACE)
        self._running.clear()
        if self._began:
            self._ray.shutdown()

    def _parcel(self, job: Job) -> dict[str, Any]:
        """What a node needs. Where some node does not see our files, also references to all that it
        needs of them, which are fetched if need be, once for all workers of a node."""
        parcel: dict[str, Any] = {
            "token": "" if self._forced else self._token,
            "name": self._name,
        }
        if self._shared:
            return parcel
        if self._rows is None:
            self._rows = self._ray.put(rows_of(self._plan.dataset))
        for where in job.worlds:
            if where not in self._worlds and (files := packed(Path(where))):
                self._worlds[where] = self._ray.put(files)
        begun, directory = None, Path(job.directory)
        if (step := position(job.kind, directory)) >= 0:
            begun = step, self._ray.put(packed(directory))
        worlds = {where: self._worlds[where] for where in job.worlds if where in self._worlds}
        return parcel | {"rows": self._rows, "worlds": worlds, "begun": begun}

    def _ended(self, reference: Any) -> tuple[int, Outcome] | None:
        ticket, job = self._running.pop(reference)
        errors = self._ray.exceptions
        try:
            text, files = self._ray.get(reference)
        except errors.TaskCancelledError:
            return ticket, Outcome("stopped")
        except (errors.WorkerCrashedError, errors.OutOfMemoryError, errors.NodeDiedError) as error:
            times = f"its worker died {RETRIES + 1} times"
            return ticket, Outcome("lost", problem=f"{job.name}: {times} ({_first_line(error)})")
        except errors.RayError as error:
            return ticket, Outcome("refused", problem=_explained(error))
        if text == UNSEEN:
            self._shared = False
            self._send(ticket, job)
            return None
        if files is not None:
            unpack(brought_home(files, job.worlds), Path(job.directory))
        return ticket, Outcome.read(text)


def _signed(directory: Path) -> tuple[str, str]:
    """Write a new word into the folder of the runs, so that no copy of it passes for it; and the
    name of this folder for nodes that do not see it, which stays the same when a sweep is resumed
    and is another one where it is begun anew."""
    directory.mkdir(parents=True, exist_ok=True)
    path, token = directory / TOKEN, uuid.uuid4().hex
    try:
        _, stays = path.read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        stays = uuid.uuid4().hex
    with atomic(path) as draft:
        draft.write_text(f"{token}\n{stays}\n", encoding="utf-8")
    identity = f"{platform.node()} {directory.resolve()} {stays}"
    return token, hashlib.sha256(identity.encode()).hexdigest()[:16]


def needed() -> Any:
    """The package Ray, which is told to phone nobody."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # else anything else comes first
    return imported("ray", ConfigError(NEEDS))


def _connect(ray: Any, address: str | None, jobs: int | None) -> None:
    quiet = {"log_to_driver": False, "configure_logging": True, "logging_level": "ERROR"}
    try:
        if address is None:
            ray.init(
                address="local",
                num_cpus=jobs or len(cores.available()),
                include_dashboard=False,
                object_store_memory=STORE,
                _node_ip_address="127.0.0.1",
                **quiet,
            )
        else:
            _check_reachable(address)
            ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as error:
        where = "Ray cannot be started here" if address is None else f"--address {address}"
        raise SweepError(f"{where}: {_first_line(error)}") from None


def _check_reachable(address: str) -> None:
    """Ask before Ray does, which waits long."""
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if "://" in address or not colon or not port.isdigit():
        raise SweepError(f"--address {address}: write HOST:PORT of the head node, or auto")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise SweepError(
            f"--address {address}: no Ray answers there ({error.strerror or error}). Start one "
            f"with 'ray start --head --port {port}', or leave --address out to start Ray here; the "
            "same command then resumes"
        ) from None


def _explained(error: Exception) -> str:
    text = _first_line(error)
    if "No module named" in str(error):
        return f"a node cannot run neubay: {text}. Install the same on every node"
    return f"Ray: {text}"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]
