"""One gradient step of a pool."""

import jax

from neubay.config import WorldConfig
from neubay.world import training
from neubay.world.model import Member
from neubay.world.transitions import Batch


def test_flops_of_a_step_are_those_of_its_matrix_products() -> None:
    """The compiler counts them too, and a little for everything else."""
    config = WorldConfig(width=48, depth=3, batch=64, pool=1, members=1)
    shaped = jax.ShapeDtypeStruct
    member = jax.eval_shape(lambda: Member(7, 5, config, key=jax.random.key(0)))
    batch = Batch(shaped((64, 7), "f4"), shaped((64, 5), "f4"), shaped((64,), bool))
    compiled = jax.jit(jax.grad(training.loss)).lower(member, batch).compile()
    counted = training.training_flops(7, 5, config)
    assert counted <= compiled.cost_analysis()["flops"] <= 1.35 * counted
