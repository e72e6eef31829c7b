"""What imagination asks of a world and of a policy."""

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float, Int, Key

from neubay.tape import AgentInput

Memory = Any  # a pytree; every leaf has the rollouts as its leading axis


@runtime_checkable
class Dynamics(Protocol):
    """The members in which k rollouts live."""

    def sample(
        self, state: Float[Array, "k s"], action: Float[Array, "k a"], keys: Key[Array, " k"]
    ) -> tuple[Float[Array, "k s"], Float[Array, " k"]]:
        """(s', r) ~ m_theta(s, a), each rollout in its own member and from its own key."""
        ...


@runtime_checkable
class EndingDynamics(Dynamics, Protocol):
    """Members that have learned what ends an episode."""

    def terminal(
        self,
        state: Float[Array, "k s"],
        action: Float[Array, "k a"],
        next_state: Float[Array, "k s"],
        keys: Key[Array, " k"],
    ) -> Bool[Array, " k"]:
        """f_term(s, a, s'), each rollout by its own member, from the keys of that step."""
        ...


@runtime_checkable
class WideningDynamics(Dynamics, Protocol):
    """Members beyond which there are worlds as well."""

    def beyond(self, others: Any, widen: float) -> Dynamics:
        """m + widen (m - m') for each rollout's member m, and m' of the others."""
        ...


@runtime_checkable
class Posterior(Protocol):
    """The posterior over worlds."""

    @property
    def size(self) -> int:
        """N, the number of members."""
        ...

    def select(self, member: Int[Array, " k"]) -> Dynamics:
        """The given members, one for each of k rollouts."""
        ...

    def uncertainty(
        self, state: Float[Array, "b s"], action: Float[Array, "b a"]
    ) -> Float[Array, " b"]:
        """U(s, a)."""
        ...


@runtime_checkable
class ActingPolicy(Protocol):
    """A policy as functions of explicit memory."""

    def initial(self, batch: int) -> Memory:
        """Memory before anything was seen."""
        ...

    def act(
        self, memory: Memory, inputs: AgentInput, keys: Key[Array, " k"]
    ) -> tuple[Memory, Float[Array, "k a"]]:
        """Read one row, leaves (k, ...), and choose the action there."""
        ...


@runtime_checkable
class HistoryPolicy(ActingPolicy, Protocol):
    """A policy that reads histories."""

    def recall(self, history: AgentInput, length: Int[Array, " k"]) -> Memory:
        """Memory after rows 0 .. length - 1 of each history, leaves (rows, k, ...)."""
        ...
