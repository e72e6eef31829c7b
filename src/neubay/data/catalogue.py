"""Which datasets can be downloaded: the paper's 33, their publishers, addresses and checksums."""

import difflib
import urllib.parse
from dataclasses import dataclass

from neubay.errors import DatasetError


@dataclass(frozen=True)
class Publisher:
    """Who publishes files, where, and what is in each of them."""

    title: str
    scheme: str
    """What sources begin with, and the name of its folder in the cache."""
    host: str
    suffix: str
    arrays: tuple[str, ...]
    """The names without which a file is not one of theirs."""


@dataclass(frozen=True)
class RemoteFile:
    """A dataset as it is published."""

    publisher: Publisher
    path: str
    """Below the host, or below a mirror of it."""
    md5: str | None = None
    """The published checksum, where there is one."""


D4RL = Publisher(
    title="D4RL",
    scheme="d4rl",
    host="http://rail.eecs.berkeley.edu/datasets/offline_rl/",
    suffix=".hdf5",
    arrays=("observations", "actions", "rewards", "terminals"),
)
NEORL = Publisher(
    title="NeoRL",
    scheme="neorl",
    host="http://datasets.polixir.site/v2/",
    suffix=".npz",
    arrays=("obs", "next_obs", "action", "reward", "done", "index"),
)

_D4RL_PATHS = {
    **{
        f"{env}-{tier}-v2": f"gym_mujoco_v2/{env}_{tier.replace('-', '_')}-v2.hdf5"
        for env in ("halfcheetah", "hopper", "walker2d")
        for tier in ("random", "medium", "medium-replay", "medium-expert")
    },
    **{
        f"{env}-{tier}-v1": f"hand_dapg_v1/{env}-{tier}-v1.hdf5"
        for env in ("pen", "door", "hammer")
        for tier in ("human", "cloned")
    },
    **{
        f"antmaze-{layout}-v2": f"ant_maze_v2/Ant_maze_{maze}_noisy"
        f"_multistart_{multistart}_multigoal_{multigoal}_sparse_fixed.hdf5"
        for layout, maze, multistart, multigoal in (
            ("umaze", "u-maze", False, False),
            ("umaze-diverse", "u-maze", True, True),
            ("medium-play", "big-maze", True, False),
            ("medium-diverse", "big-maze", True, True),
            ("large-play", "hardest-maze", True, False),
            ("large-diverse", "hardest-maze", True, True),
        )
    },
}

# Of NeoRL's sizes the paper uses the training files of 1000 trajectories.
_NEORL_MD5 = {
    ("HalfCheetah-v3", "Low"): "5afc938d022d5ae6afed25397d457e8d",
    ("HalfCheetah-v3", "Medium"): "b13bd54a0466f86455939a1175762a2a",
    ("HalfCheetah-v3", "High"): "e253a2613de6acbbb05ad0441e4949b8",
    ("Hopper-v3", "Low"): "95a0c17014ba9fc45e739c820f3910ef",
    ("Hopper-v3", "Medium"): "c54404ee2f9b3eeb9168b35d48dca341",
    ("Hopper-v3", "High"): "91e711f30d4379cd627f63acfcfeb3c7",
    ("Walker2d-v3", "Low"): "3e88129538b30400b5b2b81d7f5a0044",
    ("Walker2d-v3", "Medium"): "a93baf6c53b578cd8c2286ccc1f837d9",
    ("Walker2d-v3", "High"): "ad15293c78a204fa20bb05e5206d0cb4",
}

# The paper's 33 datasets by name.
FILES: dict[str, RemoteFile] = {
    **{name: RemoteFile(D4RL, path) for name, path in _D4RL_PATHS.items()},
    **{
        f"{env}-{tier}": RemoteFile(NEORL, f"{env}/{env}-{tier.lower()}-1000-train-noise.npz", md5)
        for (env, tier), md5 in _NEORL_MD5.items()
    },
}

LOCAL_COPY_WORKS = (
    "A copy from anywhere else works too: give its path, d4rl:PATH.hdf5 or neorl:PATH.npz."
)


def published_file(name: str) -> RemoteFile:
    """What is known about the file of a dataset."""
    if name in FILES:
        return FILES[name]
    close = difflib.get_close_matches(name.replace("_", "-"), FILES, n=1, cutoff=0.6)
    hint = f"Did you mean '{close[0]}'?" if close else "'neubay data list' shows the names."
    raise DatasetError(
        f"'{name}': not the name of a dataset that can be downloaded. {hint} {LOCAL_COPY_WORKS}"
    )


def address(name: str, mirror: str | None = None) -> str:
    """Where the file of a dataset is: below its host, or below a mirror of the same layout."""
    file = published_file(name)
    host = file.publisher.host if mirror is None else mirror
    parts = urllib.parse.urlsplit(host)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise DatasetError(
            f"mirror '{host}': not an http:// or https:// address. {LOCAL_COPY_WORKS}"
        )
    return host.rstrip("/") + "/" + file.path
