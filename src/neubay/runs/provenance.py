"""What decides the numbers of a run: versions, commit, kind of machine."""

import functools
import importlib.metadata
import importlib.util
import platform
import shutil
import subprocess
from pathlib import Path

from neubay import __version__


@functools.cache
def provenance() -> dict[str, str]:
    """Versions of what decides the numbers, and the kind of machine."""
    import jax

    packages = ("jax", "jaxlib", "equinox", "optax", "numpy", "mujoco")
    return {
        "neubay": __version__,  # of this code, whatever an editable install remembers
        **{name: importlib.metadata.version(name) for name in packages},
        **_commit(),
        "python": platform.python_version(),
        "backend": jax.default_backend(),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def _commit(package: Path = Path(__file__).parents[1]) -> dict[str, str]:
    """The commit that the package is run from, where it is in a checkout; '-dirty' if a file of
    the package, not of its documentation or tests, is another one than in the commit."""
    git = shutil.which("git")
    if git is None or not (package.parents[1] / ".git").exists():
        return {}

    def ask(*words: str) -> str | None:
        command = [git, "-C", str(package), *words]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        return answer.stdout.strip() if answer.returncode == 0 else None

    commit, changes = ask("rev-parse", "HEAD"), ask("status", "--porcelain", "--", ".")
    return {"commit": commit + ("-dirty" if changes else "")} if commit else {}
