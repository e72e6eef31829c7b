"""What a dataset's name says: the only place where names of datasets are interpreted."""

import re
from pathlib import PurePosixPath

from neubay import published

_LOCOMOTION = r"(?P<body>halfcheetah|hopper|walker2d)"
_ADROIT = r"(?P<body>pen|door|hammer)"
_VERSION = r"(?:-v(?P<version>\d+))?"

# How a name of the data is written -> the task, and the paper's spelling of the dataset. Matched
# in lower case, with '-' for '_', against the whole name; the first that fits is taken.
_NAMES: tuple[tuple[str, str, str | None], ...] = (
    # D4RL names and files: hopper-medium-replay-v2, hopper_medium_replay-v2.hdf5
    (
        rf"{_LOCOMOTION}-(?P<tier>random|medium|expert|mixed"
        rf"|medium-replay|medium-expert|full-replay|random-expert){_VERSION}",
        "d4rl/{body}",
        "{body}-{tier}-v{version}",
    ),
    (
        rf"{_ADROIT}-(?P<tier>human|cloned|expert){_VERSION}",
        "adroit/{body}",
        "{body}-{tier}-v{version}",
    ),
    (
        rf"antmaze-(?P<maze>umaze|medium|large)(?P<tier>-diverse|-play)?{_VERSION}",
        "antmaze/{maze}",
        "antmaze-{maze}{tier}-v{version}",
    ),
    # hand_dapg's own files, from before D4RL's v1: pen-v0_demos_clipped, pen-demos-v0-bc-combined
    (rf"{_ADROIT}-(?:v0-demos|demos-v0).*", "adroit/{body}", None),
    # NeoRL: HalfCheetah-v3-Low, HalfCheetah-v3-low-1000-train-noise.npz; the paper's data is the
    # training file of 1000 trajectories
    (
        rf"{_LOCOMOTION}-v3-(?P<tier>low|medium|high)(?:-(?:999|1000))?(?:-train)?(?:-noise)?",
        "neorl/{body}",
        "{body}-v3-{tier}",
    ),
    (
        rf"{_LOCOMOTION}-v3-(?:low|medium|high)(?:-\d+)?(?:-train|-val)?(?:-noise)?",
        "neorl/{body}",
        None,
    ),
    (r"(?:neorl2-)?safetyhalfcheetah(?:-v\d+)?(?:-train|-val)?", "neorl2/safetyhalfcheetah", None),
    # Minari ids, which may be the end of a path: new data, of the same families
    (rf"(?:.*/)?mujoco/{_LOCOMOTION}/[^/]+", "mujoco/{body}-v5", None),
    (rf"(?:.*/)?d4rl/{_ADROIT}/[^/]+", "adroit/{body}", None),
    (r"(?:.*/)?(?P<body>pendulum|cartpole)(?:-v1)?(?:[-/][^/]+)?", "{body}", None),
)

# D4RL's AntMaze files say what was varied, not what the dataset is called.
_ANTMAZE_FILE = re.compile(
    r"ant-maze-(?P<maze>u-maze|big-maze|hardest-maze)-noisy"
    r"-multistart-(?P<starts>true|false)-multigoal-(?P<goals>true|false)-sparse(?P<v2>-fixed)?"
)
_ANTMAZE_MAZES = {"u-maze": "umaze", "big-maze": "medium", "hardest-maze": "large"}
_DATA_SUFFIXES = {".hdf5", ".h5", ".npz"}


def interpret(name: str) -> tuple[str | None, str | None]:
    """The name of the task that a dataset's name, Minari id or file name belongs to, and the name
    of the paper's dataset that it *is*; none where the name does not say.

    A file such as 'hopper_medium.hdf5' is of the hopper family but, having no version, not the
    paper's dataset: its results are not comparable with published ones.
    """
    path = PurePosixPath(name.replace("\\", "/"))
    is_file = path.suffix.lower() in _DATA_SUFFIXES
    plain = (path.stem if is_file else str(path)).lower().replace("_", "-")
    if found := _ANTMAZE_FILE.fullmatch(plain):
        plain = _antmaze_name(found)
    for pattern, task, dataset in _NAMES:
        if found := re.fullmatch(pattern, plain):
            words = {key: value or "" for key, value in found.groupdict().items()}
            spelling = dataset.format(**words) if dataset else ""
            paper = {name.lower(): name for name in published.datasets()}  # NeoRL's have capitals
            return task.format(**words), paper.get(spelling)
    return None, None


def _antmaze_name(found: re.Match[str]) -> str:
    maze = _ANTMAZE_MAZES[found["maze"]]
    varied = (found["starts"] == "true", found["goals"] == "true")
    tier = {(True, True): "-diverse", (True, False): "-play"}.get(varied, "")
    return f"antmaze-{maze}{tier}" + ("-v2" if found["v2"] else "")
