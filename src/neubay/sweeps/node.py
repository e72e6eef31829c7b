"""What a Ray task does on its node. Ray imports this file in a worker that has no cores of its own
yet: what needs them is imported after they are claimed.
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neubay.runs.cache import keep_compiled_programs
from neubay.sweeps import cores

if TYPE_CHECKING:
    import numpy as np

    from neubay.sweeps.jobs import Job

UNSEEN = "unseen"
"""The answer of a node that does not see our files, and was not given what it needs of them."""
TOKEN = ".engine"
"""In the folder of the runs: a word that tells a worker whether it sees the same folder, and a name
for what nodes keep that do not."""
Files = Mapping[str, "np.ndarray"]
_pinned: list[int] = []


def task(text: str, parcel: dict[str, Any]) -> tuple[str, Files | None]:
    """Do a job; the files that it made, where they are not seen from where the sweep is."""
    if not _pinned:
        _pinned.extend(cores.claim(1))
        keep_compiled_programs()
    from neubay.sweeps.jobs import Job
    from neubay.sweeps.work import do, refused

    job = Job.read(text)
    if _sees(Path(job.home), parcel["token"]):
        return do(job).text(), None
    if "rows" not in parcel:
        return UNSEEN, None
    try:
        return _apart(job, parcel)
    except OSError as error:  # of what is fetched or sent; the job itself raises nothing
        return refused(error).text(), None


def _apart(job: "Job", parcel: dict[str, Any]) -> tuple[str, Files | None]:
    """Do a job in a folder of this node, with what came through the object store."""
    import ray

    from neubay.sweeps.jobs import packed, position, unpack
    from neubay.sweeps.work import do

    node = ray.get_runtime_context().get_node_id()
    scratch = Path(tempfile.gettempdir()) / f"neubay-sweep-{parcel['name']}" / node[:12]
    worlds = scratch / "cache" / "worlds"
    for where, reference in parcel["worlds"].items():
        fetch(worlds / Path(where).name, ray.get, reference)
    place = (worlds if job.kind in ("world", "judge") else scratch / "runs") / job.name
    if parcel["begun"] is not None:
        begun, reference = parcel["begun"]
        if position(job.kind, place) < begun:
            unpack(ray.get(reference), place)
    outcome = do(job.at(place, scratch / "cache"), lambda: ray.get(parcel["rows"]))
    # What was refused was not done: nothing there is this job's.
    return outcome.text(), None if outcome.state == "refused" else packed(place) or None


def fetch(target: Path, get: Callable[[Any], Files], reference: Any) -> None:
    """Put files into a folder, once for all workers of a node."""
    from neubay.sweeps.jobs import unpack

    if target.is_dir():
        return
    try:
        unpack(get(reference), target)
    except OSError:
        if not target.is_dir():  # not by another worker in the meantime
            raise


def _sees(home: Path, token: str) -> bool:
    """This node sees the folder of the runs."""
    try:
        return bool(token) and (home / TOKEN).read_text(encoding="utf-8").split()[0] == token
    except (OSError, IndexError):
        return False
