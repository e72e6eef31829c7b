"""Many runs: a search space becomes run directories, and an engine runs them.

space.py      what is searched: ranges and lists of settings
proposals.py  what is tried next, and what is ended early (Optuna)
data.py       the dataset as a worker finds it: by name, or as arrays
jobs.py       a run directory, or a world, as a worker gets it
plan.py       what the runs share, and the jobs that they are
cores.py      cores of one's own, before JAX is imported
work.py       doing a job
worker.py     a process that does one job after the other
local.py      an engine of such processes
node.py       a Ray task that does a job
ray_engine.py an engine of such tasks
dispatch.py   jobs in front of an engine: worlds before the runs that need them
loop.py       ask, run, tell
sweep.py      one call for all of it
shards.py     the pool of one world in parts, epoch by epoch

No scheduler: an engine takes jobs as long as it has room. A run resumes exactly from its directory,
and that is the fault tolerance. Nothing is imported here: a worker claims its cores first.
"""
