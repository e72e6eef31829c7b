"""One file per group of commands: each function parses nothing and computes nothing itself; its
signature is the command line (read by tyro), its body calls the rooms and prints."""

# The words of a command -> the function behind it, and one line of help.
COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("train:train", "world, agent and evaluation in one call"),
    "select": ("select:select", "which policy to deploy, if any, without a simulator"),
    "sweep": ("sweep:sweep", "settings searched over many runs, here or on a Ray cluster"),
    "ablate": ("ablate:ablate", "the paper's ablations as runs, and as tables of its form"),
    "report": ("report:report", "one page of runs, with figures and tables; the paper's tables"),
    "watch": ("report:watch", "the live page of a run on this machine"),
    "runs list": ("runs:list_runs", "the runs in a folder, their state and what they reached"),
    "runs show": ("runs:show", "one run: what was asked, how far it is, what it reached"),
    "runs rm": ("runs:remove", "remove runs, after asking"),
    "export": ("export:export", "a policy for NumPy alone, ONNX or StableHLO, with its card"),
    "card": ("export:card", "what a policy is, how good, on whose word, and its limits"),
    "bench": ("bench:bench", "each stage against the machine's own matmul rate"),
    "world": ("world:train", "train a posterior over worlds on a dataset"),
    "world info": ("world:info", "what a world directory holds"),
    "data list": (
        "data:list_datasets",
        "datasets the paper uses, the built-in one, and local ones",
    ),
    "data info": ("data:info", "episodes, returns, coverage, hash and score of a dataset"),
    "data validate": (
        "data:validate",
        "check a dataset; every finding names file, key, row, remedy",
    ),
    "data import": ("import_log:import_log", "logged tables (CSV, Parquet) as a dataset"),
    "data convert": ("data:convert", "any source to Minari or D4RL HDF5, loss-free"),
    "data collect": ("data:collect", "roll a behaviour in a task's environment into a dataset"),
    "data download": ("data:download", "fetch a dataset of the paper: resumable, checksummed"),
    "bandit": ("bandit:bandit", "the paper's Section 3 in full, and its theorem in numbers"),
    "bandit report": ("bandit:report", "figures and tables over several runs of the bandit"),
    "analyze uncertainty": ("analyze:uncertainty", "how uncertain worlds are about data"),
    "analyze compounding": ("analyze:compounding", "errors over long rollouts of recorded actions"),
    "analyze calibration": (
        "analyze:calibration",
        "does uncertainty predict errors, are intervals honest",
    ),
    "analyze termination": (
        "analyze:termination",
        "do learned ends agree with the known rule",
    ),
    "analyze exploitation": (
        "analyze:exploitation",
        "what worlds promise of their policies against what the environment pays",
    ),
    "analyze cloning": (
        "analyze:cloning",
        "is the clone that held-out likelihood chooses the better one",
    ),
    "analyze table": ("analyze:table", "tables in Markdown of what the analyses found"),
    "analyze selection": (
        "analyze:selection",
        "how well selection chooses, where an environment can check it",
    ),
    "analyze guard": ("analyze:guard", "what a guard says before falls, and what it changes"),
    "analyze runs": ("analyze:runs", "tables of training runs, and their horizons over zeta"),
    "completion": (
        "completion:completion",
        "a script that makes bash, zsh or fish complete all this",
    ),
}
