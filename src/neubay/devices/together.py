"""Work side by side on one machine.

`at_once` does tasks that know nothing of each other, each in a thread: much of what XLA does on a
CPU (compiling, small matrices) keeps one core busy.

`run_together` is for devices that one training leaves partly idle: the updates of several trainings
as one program. Each training is a thread that runs unchanged code, and one of them runs at a time.
At an update it waits until all others have come to theirs; then one call makes the steps of all,
side by side, and each continues with its own result. A training that has ended is not waited for.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp

Result = TypeVar("Result")
Steps = tuple[Any, dict[str, Any]]
"""A state after gradient steps, and their metrics."""


@runtime_checkable
class Updating(Protocol):
    """What makes gradient steps; equal ones make the same program."""

    def update(self, state: Any, tapes: Any) -> Steps: ...

    def __hash__(self) -> int: ...


Update = Callable[[Any, Any, Any], Steps]
"""(agent, state, tapes) -> agent.update(state, tapes), alone or with others."""


@contextlib.contextmanager
def at_once(tasks: Sequence[Callable[[], Any]]) -> Iterator[list[Callable[[], Any]]]:
    """Begin all tasks, each in a thread; of each, a function is given that waits for its result.
    What a task raises is raised there, once all have ended. The block ends when all tasks have,
    whatever ends it: a process that ends while they compute aborts.

    Signals that the caller has deferred are seen by all tasks, which end at their next safe point.
    """
    outcomes: list[Any] = [None] * len(tasks)
    # Waited for in the place of threads: of a `join` that a signal interrupts, Python 3.11 takes a
    # thread for ended that is not.
    ended = [threading.Event() for _ in tasks]
    # The caller's device, which threads do not inherit.
    device = jax.config.jax_default_device  # type: ignore[attr-defined]

    def run(place: int) -> None:
        try:
            with jax.default_device(device):
                outcomes[place] = tasks[place]()
        except BaseException as error:
            outcomes[place] = _Raised(error)
        finally:
            ended[place].set()

    def wait_for_all() -> None:
        for each in ended[:begun]:
            each.wait()

    def result(place: int) -> Any:
        ended[place].wait()
        if isinstance(outcome := outcomes[place], _Raised):
            wait_for_all()
            raise outcome.error
        return outcome

    begun = 0
    try:
        for place in range(len(tasks)):
            threading.Thread(target=run, args=(place,), daemon=True).start()
            begun += 1
        yield [partial(result, place) for place in range(len(tasks))]
    finally:
        wait_for_all()


class _Raised(NamedTuple):
    """What a task raised in the place of a result."""

    error: BaseException


def run_together(trainings: Sequence[Callable[[Update], Result]]) -> list[Result]:
    """Run trainings, each a function of how its updates are made, and give their results.

    One that fails does not stop the others; what went wrong is raised at the end. Signals that the
    caller has deferred are seen by all.
    """
    meeting = _Meeting(len(trainings))

    def run(place: int) -> Result:
        with meeting.turn:
            try:
                return trainings[place](partial(meeting.update, place))
            finally:
                meeting.leave()

    with at_once([partial(run, place) for place in range(len(trainings))]) as results:
        pass
    return [result() for result in results]


class _Meeting:
    """Where trainings wait for one another's updates."""

    def __init__(self, count: int) -> None:
        self.turn = threading.Condition()  # held by the training that runs
        self._running = count  # trainings that have not ended
        self._due: dict[int, tuple[Updating, Any, Any]] = {}  # agent, state, tapes by training
        self._made: dict[int, Steps | Exception] = {}  # what came of it, until it is fetched

    def update(self, place: int, agent: Updating, state: Any, tapes: Any) -> Steps:
        """The update of one training, together with those of the others."""
        self._due[place] = agent, state, tapes
        self._make_if_all_wait()
        self.turn.wait_for(lambda: place in self._made)
        made = self._made.pop(place)
        if isinstance(made, Exception):
            raise made
        return made

    def leave(self) -> None:
        """A training has ended."""
        self._running -= 1
        self._make_if_all_wait()

    def _make_if_all_wait(self) -> None:
        if not self._due or len(self._due) < self._running:
            return
        groups: dict[Any, list[int]] = {}  # of one shape: the last call of a training is shorter
        for place, (agent, _, tapes) in sorted(self._due.items()):
            sizes = tuple(leaf.shape for leaf in jax.tree.leaves(tapes))
            groups.setdefault((agent, sizes), []).append(place)
        for (agent, _), places in groups.items():
            _, states, tapes = zip(*(self._due.pop(place) for place in places), strict=True)
            try:
                made: Sequence[Steps | Exception] = updates(agent, states, tapes)
            except Exception as error:
                made = [error] * len(places)
            self._made |= dict(zip(places, made, strict=True))
        self.turn.notify_all()


def updates(agent: Updating, states: Sequence[Any], tapes: Sequence[Any]) -> list[Steps]:
    """`agent.update` of several states, each on its own tapes, in one call on the device. The
    states passed in must not be used again."""
    if len(states) == 1:
        return [agent.update(states[0], tapes[0])]
    return _side_by_side(agent)(tuple(states), tuple(tapes))


@cache
def _side_by_side(agent: Updating) -> Callable[[tuple, tuple], list[Steps]]:
    def stacked(trees: tuple) -> Any:
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)

    @partial(jax.jit, donate_argnums=0)
    def together(states: tuple, tapes: tuple) -> list[Steps]:
        results = jax.vmap(agent.update)(stacked(states), stacked(tapes))
        return [jax.tree.map(lambda leaf, i=i: leaf[i], results) for i in range(len(states))]

    return together
