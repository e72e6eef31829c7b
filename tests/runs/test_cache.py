"""Compiled programs are kept between processes, where the user can write and has not chosen."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from neubay.runs.cache import cache_directory, keep_compiled_programs

VARIABLES = (
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_COMPILATION_CACHE_MAX_SIZE",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
)


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user's cache that is not there yet, and none of JAX's variables."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what is set in the test is undone after it
        monkeypatch.delenv(name)
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_programs_are_kept_in_the_users_cache(unset: Path) -> None:
    keep_compiled_programs()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(cache_directory() / "compiled")
    assert not cache_directory().exists()  # JAX makes it when there is something to keep


def test_a_folder_of_the_users_own_is_left_alone(
    unset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "mine")
    keep_compiled_programs()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "mine"
    assert "JAX_COMPILATION_CACHE_MAX_SIZE" not in os.environ


def test_nothing_is_kept_where_nothing_can_be_written(
    unset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    keep_compiled_programs()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


PROGRAM = """
from neubay.runs.cache import keep_compiled_programs
keep_compiled_programs()
import jax, jax.numpy as jnp
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
def body(x):
    for _ in range(30):
        x = jnp.linalg.qr(x @ x.T)[0] + jnp.sin(x)
    return x
jax.jit(body)(jnp.eye(8)).block_until_ready()
print("/jax/compilation_cache/cache_hits" in hits)
"""


@pytest.mark.slow
def test_the_second_process_compiles_nothing(unset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A fast machine compiles this in less than what is worth keeping by default.
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

    def hits() -> str:
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
        )
        return ran.stdout.strip()

    assert [hits(), hits()] == ["False", "True"]
