"""Transitions: their split into training and validation, and epochs of them in chunks."""

import jax.numpy as jnp
import numpy as np

from helpers.linear_system import CONFIG
from neubay.data.dataset import Dataset
from neubay.world import transitions


def test_validation_is_a_fixed_share_and_never_trained_on(dataset: Dataset) -> None:
    rows = dataset.world_rows
    train, validation = transitions.split_rows(rows, CONFIG, seed=0)
    assert len(validation) == 800  # a fifth, below the cap of 1000
    np.testing.assert_array_equal(np.sort(np.concatenate([train, validation])), rows)
    np.testing.assert_array_equal(transitions.split_rows(rows, CONFIG, seed=0)[1], validation)
    assert not np.array_equal(transitions.split_rows(rows, CONFIG, seed=1)[1], validation)
    capped = CONFIG.model_copy(update={"validation_max": 100})
    assert len(transitions.split_rows(rows, capped, seed=0)[1]) == 100
    assert len(transitions.split_rows(rows[:3], CONFIG, seed=0)[1]) == 1


def test_changes_can_be_learned_in_their_own_unit(dataset: Dataset) -> None:
    rows = dataset.world_rows
    scaler = transitions.fit_scaler(dataset, "change")
    state = np.asarray(dataset.tape.state)
    change = state[rows + 1] - state[rows]
    np.testing.assert_allclose(scaler.change_std, change.std(axis=0), rtol=1e-4)
    data = transitions.Transitions.view(dataset.tape, rows)
    index = jnp.arange(len(rows))
    batch = transitions.gather(data, index, index >= 0, scaler, reward_only=False)
    np.testing.assert_allclose(np.std(batch.targets, axis=0), 1, rtol=1e-3)
    plain = transitions.fit_scaler(dataset)
    assert plain.change_std is None
    np.testing.assert_array_equal(plain.change_unit, plain.state_std)


def test_a_streamed_epoch_has_every_transition_once(dataset: Dataset, streaming: None) -> None:
    rows = dataset.world_rows[:3777]
    epochs = transitions.Epochs(dataset, rows, batch=64, batches_per_call=7, seed=0)

    def visited(epoch: int) -> list[float]:
        values, chunks = [], set()
        for share in epochs.shares(epoch, 0):
            assert share.data.row.shape == (960,)
            if share.chunk not in chunks:
                values += share.data.reward[share.data.row[: share.transitions]].tolist()
            chunks.add(share.chunk)
        return values

    first, second = visited(0), visited(1)
    everything = sorted(dataset.tape.reward[rows].tolist())
    assert sorted(first) == everything == sorted(second)
    assert first != second
    batches = sum(share.last - share.first for share in epochs.shares(0, 0))
    assert batches == 3 * 15 + 15  # ceil(960 / 64) thrice, ceil(897 / 64)
    assert len(list(epochs.shares(0, 5))) == len(epochs) - 5
