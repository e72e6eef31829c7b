"""Selection: candidates judged by the posterior under one protocol, and whether to deploy one.

record.py      what is kept of the data: starts, lengths, returns, rewards
judge.py       members that did not train the policies
protocol.py    a candidate's rollouts: same starts, members and keys for all
verdict.py     estimates, gains, ranking, the verdict
candidates.py  what is judged
choice.py      all of it together, and its files
"""

from neubay.selection.candidates import Candidate, of_runs
from neubay.selection.choice import Selection, choose, estimate, select
from neubay.selection.judge import Judge, fit_judge, judge_config, judge_directory, load_judge
from neubay.selection.protocol import Rollouts, Trial
from neubay.selection.record import DataRecord, load_record
from neubay.selection.verdict import Judged, Sanity, Verdict, decide, ranked

__all__ = [
    "Candidate",
    "DataRecord",
    "Judge",
    "Judged",
    "Rollouts",
    "Sanity",
    "Selection",
    "Trial",
    "Verdict",
    "choose",
    "decide",
    "estimate",
    "fit_judge",
    "judge_config",
    "judge_directory",
    "load_judge",
    "load_record",
    "of_runs",
    "ranked",
    "select",
]
