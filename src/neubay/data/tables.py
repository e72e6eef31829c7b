"""Logs of a plant as tables: CSV, Parquet and data frames -> flat rows -> a dataset.

A row of a log holds what was measured, what was commanded and, where it is known, what it was
worth. Its columns are given, or guessed from their names, and what was guessed is said. Nothing is
repaired in silence: rows that are dropped, sorted or split are counted, and every count is a
finding.

The last row of an episode is used only as the state that the step before led to: what its action
led to was not logged, and there may be none, as no command follows a trip. So an episode of L rows
has L - 1 steps, and a terminal flag in its last row marks the step into it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from neubay.data.findings import Finding
from neubay.data.layout import Bound
from neubay.data.rows import ColumnNames
from neubay.errors import DatasetError, imported
from neubay.tasks.expressions import Expression, parse

RewardAt = Literal["same", "next"]

GAP = 5.0
"""A time step longer than this many usual ones ends an episode."""

IRREGULAR = 0.5
"""A time step that is off by more than this share of the usual one is irregular."""

MOST_DISCRETE = 32
"""Whole numbers with more values than this are a quantity, not the numbers of actions."""

# How columns are called, in lower case, whole or up to a number: the first role that fits.
_NAMES: dict[str, str] = {
    "reward": r"reward|rewards|rew|r|return_step",
    "episode": r"episode(_?id|_?nr|_?number)?|ep|traj(ectory)?(_?id)?|(run|batch|cycle)(_?id)?",
    "time": r"time(_?stamp)?|timestamp|datetime|date|t|step|time_?step",
    "terminal": r"terminals?|terminated|terminations?|failed|failure|trip(ped)?",
    "timeout": r"timeouts?|truncated|truncations?",
    "actions": r"(a|act|acts|action|actions|u|control|command|cmd|setpoint|valve|pump)",
    "states": r"(s|o|x|obs|observation|observations|state|states|sensor)",
}
_NUMBERED = r"(\d+|[ _.\[-]\w{1,40}\]?)?"


@dataclass(frozen=True)
class Columns:
    """Which column of a log is what. `reward` is a column or a formula of columns."""

    states: tuple[str, ...]
    actions: tuple[str, ...]
    reward: str
    episode: str | None = None
    time: str | None = None
    terminal: str | None = None
    timeout: str | None = None

    @property
    def names(self) -> ColumnNames:
        return ColumnNames(self.states, self.actions, self.reward)

    def needed(self, names: Iterable[str]) -> list[str]:
        """The columns to read, in the order of the log."""
        single = (self.episode, self.time, self.terminal, self.timeout)
        wanted = {*self.states, *self.actions, *single, *_reward_columns(self.reward, set(names))}
        return [name for name in names if name in wanted]


@dataclass(frozen=True)
class Imported:
    """The steps of a log, and what was noticed on the way."""

    arrays: dict[str, Any]
    """The arguments of `Dataset.from_arrays`."""
    action_bounds: tuple[Bound, Bound] | None
    """As given, or as guessed; none where actions are discrete."""
    columns: Columns
    guessed: dict[str, str]
    """Role -> why that column was taken for it."""
    findings: list[Finding]
    rows: dict[str, int]
    """File -> rows that were read of it."""
    last_rows: int
    """Last rows of episodes, used only as the state that the step before led to."""


def _formula(reward: str) -> Expression:
    return parse(reward if re.search(r"[`()+\-*/<>=%]|\s", reward) else f"`{reward}`")


def _reward_columns(reward: str, names: set[str]) -> frozenset[str]:
    """The columns that a reward is made of; a name of a column is itself, whatever it contains."""
    return frozenset({reward}) if reward in names else _formula(reward).names


# --- Which column is what --------------------------------------------------------------------


def choose_columns(
    names: Sequence[str], numeric: Mapping[str, bool], given: Mapping[str, Any], file: str
) -> tuple[Columns, dict[str, str]]:
    """The columns that were given, and for the rest those whose names say what they are.

    Args:
        names: of the log's columns.
        numeric: whether each holds numbers.
        given: roles of `Columns` that the user named; others are guessed.
    """
    roles = {name: value for name, value in given.items() if value not in (None, ())}
    shown = ", ".join(f"'{known}'" for known in names[:30])
    for role, value in roles.items():
        wanted = value if isinstance(value, tuple) else (value,)
        if role == "reward":
            wanted = tuple(sorted(_reward_columns(value, set(names))))
        for name in wanted:
            if name not in names:
                raise DatasetError(
                    f"{file}: has no column '{name}' ({role}). Its columns: {shown}."
                )
    # A reward that is a formula leaves its columns to be states and actions.
    taken = {n for v in roles.values() for n in (v if isinstance(v, tuple) else (v,))}
    guessed: dict[str, str] = {}
    for role, pattern in _NAMES.items():
        if role in roles:
            continue
        several = role in ("states", "actions")
        free = [n for n in names if n not in taken and (numeric[n] or role in ("episode", "time"))]
        found = [
            n for n in free if re.fullmatch(pattern + (_NUMBERED if several else ""), n.lower())
        ]
        if not found:
            continue
        roles[role] = tuple(found) if several else found[0]
        taken |= set(found if several else found[:1])
        guessed[role] = "by name"
    if "states" not in roles:
        rest = tuple(n for n in names if n not in taken and numeric[n])
        if rest:
            roles["states"], guessed["states"] = rest, "every other column of numbers"
    for role in ("states", "actions", "reward"):
        if role not in roles:
            flag = f"--{role} NAME" + (",NAME" if role != "reward" else " (or a formula)")
            so_far = "; ".join(f"{r} {_listed(roles[r])} ({why})" for r, why in guessed.items())
            raise DatasetError(
                f"{file}: no column is called like {role}. Its columns: {shown}. "
                + (f"Guessed so far: {so_far}. " if so_far else "")
                + f"Name it: {flag}."
            )
    return Columns(**roles), guessed


def _refuse_doubles(columns: Columns, file: str) -> None:
    """A column twice is a slip; and a state that is an action tells the policy what it will do."""
    for role, names in (("states", columns.states), ("actions", columns.actions)):
        if twice := [name for name in names if names.count(name) > 1]:
            raise DatasetError(f"{file}: '{twice[0]}' is named twice (--{role}). Name it once.")
    if both := [name for name in columns.states if name in columns.actions]:
        raise DatasetError(
            f"{file}: '{both[0]}' is named as a state and as an action. A state is measured before "
            "the action is chosen: name it as one of the two."
        )


def _listed(columns: str | tuple[str, ...]) -> str:
    return columns if isinstance(columns, str) else ", ".join(columns)


# --- Reading ---------------------------------------------------------------------------------


def _arrow(what: str) -> Any:
    missing = "reading tables needs the package pyarrow. Install it: pip install 'neubay[tables]'."
    return imported(what, DatasetError(missing))


@dataclass(frozen=True)
class LogTable:
    """One file or frame: its columns, and a way to read it in batches."""

    name: str
    columns: dict[str, bool]
    """Column -> whether it holds numbers."""
    batches: Any
    """A function of the columns wanted that yields Arrow record batches."""


def open_table(path: Path) -> LogTable:
    """A CSV (.csv, .csv.gz, .tsv, ...) or Parquet file, whatever its size."""
    pa = _arrow("pyarrow")
    if not path.is_file():
        raise DatasetError(f"{path}: no such file. Check the path.")
    try:
        with path.open("rb") as file:
            beginning = file.read(4)
        if beginning == b"PAR1":
            return _parquet(path)
        if beginning in _ARRAYS:
            raise DatasetError(
                f"{path}: is a file of arrays and no log: commands such as 'neubay train' read it "
                "as it is. Tables are CSV or Parquet."
            )
        return _csv(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as problem:
        raise _unreadable(path, problem) from None


_ARRAYS = (b"PK\x03\x04", b"\x89HDF", b"\x93NUM")
"""How npz, HDF5 and npy files begin."""


def _unreadable(path: Path | str, problem: Exception) -> DatasetError:
    text = "".join(sign if sign.isprintable() else " " for sign in str(problem))
    reason = " ".join(text.split())[:300]
    return DatasetError(f"{path}: cannot be read as a table ({reason}). Check the file.")


def _parquet(path: Path) -> LogTable:
    parquet = _arrow("pyarrow.parquet")
    schema = parquet.read_schema(path)

    def batches(wanted: list[str]) -> Iterator[Any]:
        with parquet.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=1 << 18, columns=wanted)

    return LogTable(str(path), _numeric(schema), batches)


def _csv(path: Path) -> LogTable:
    csv = _arrow("pyarrow.csv")
    separator = _separator(path)

    def reader(wanted: list[str] | None) -> Any:
        return csv.open_csv(
            path,
            read_options=csv.ReadOptions(block_size=1 << 24 if wanted else 1 << 20),
            parse_options=csv.ParseOptions(delimiter=separator),
            convert_options=csv.ConvertOptions(
                include_columns=wanted or [], null_values=["", "NA", "NaN", "nan", "null", "None"]
            ),
        )

    with reader(None) as first:
        columns = _numeric(first.schema)

    def batches(wanted: list[str]) -> Iterator[Any]:
        with reader(wanted) as rows:
            yield from rows

    return LogTable(str(path), columns, batches)


def _separator(path: Path) -> str:
    """The character that separates the names of a CSV's columns."""
    pa = _arrow("pyarrow")
    with pa.input_stream(str(path)) as stream:
        head = stream.read(1 << 16).decode("utf-8", errors="replace").splitlines()
    counts = {mark: head[0].count(mark) for mark in ",;\t|"} if head else {",": 0}
    return max(counts, key=lambda mark: counts[mark])


def _numeric(schema: Any) -> dict[str, bool]:
    types = _arrow("pyarrow.types")
    kinds = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
    if len(set(schema.names)) < len(schema.names):
        twice = next(name for name in schema.names if schema.names.count(name) > 1)
        raise DatasetError(f"the column '{twice}' is there twice. Rename one of them.")
    return {f.name: any(kind(f.type) for kind in kinds) for f in schema}


def frame_table(frame: Any, name: str) -> LogTable:
    """A pandas or polars data frame, or an Arrow table."""
    pa = _arrow("pyarrow")
    try:
        table = frame if isinstance(frame, pa.Table) else pa.table(frame)
    except (TypeError, ValueError, pa.ArrowException) as problem:
        raise DatasetError(
            f"{name}: {type(frame).__name__} is not a data frame that Arrow can read ({problem}). "
            "Give a pandas or polars frame, or an Arrow table."
        ) from None
    index = [column for column in table.column_names if column.startswith("__index_level_")]
    table = table.drop_columns(index)  # pandas' own, where its rows were chosen or sorted
    return LogTable(
        name, _numeric(table.schema), lambda wanted: iter(table.select(wanted).to_batches(1 << 18))
    )


@dataclass
class _LogRows:
    """The columns of all tables, as arrays."""

    states: Float[np.ndarray, "rows s"]
    actions: Float[np.ndarray, "rows a"]
    rewards: Float[np.ndarray, " rows"]
    terminal: Bool[np.ndarray, " rows"]
    timeout: Bool[np.ndarray, " rows"]
    episode: Int[np.ndarray, " rows"]
    """A number per episode as the log names them; tables are apart."""
    time: Float[np.ndarray, " rows"] | None
    placed: Bool[np.ndarray, " rows"]
    """Its state, its time and its episode are there and finite: something can lead to it."""
    whole_actions: bool
    """The action is one column of whole numbers."""

    def take(self, rows: np.ndarray) -> "_LogRows":
        """Some rows, in an order."""
        arrays = {name: v for name, v in vars(self).items() if isinstance(v, np.ndarray)}
        return replace(self, **{name: array[rows] for name, array in arrays.items()})

    def __len__(self) -> int:
        return len(self.rewards)


def _read(tables: Sequence[LogTable], columns: Columns) -> tuple[_LogRows, dict[str, int]]:
    """The rows of all tables, and how many each has."""
    counts = {table.name: 0 for table in tables}
    parts: dict[str, list[np.ndarray]] = {}
    codes: dict[tuple[int, Any], int] = {}
    whole, is_integer = len(columns.actions) == 1, _arrow("pyarrow.types").is_integer
    for number, table in enumerate(tables):
        wanted = columns.needed(table.columns)
        try:
            for batch in table.batches(wanted):
                arrays = {name: batch.column(name) for name in wanted}
                whole = whole and is_integer(arrays[columns.actions[0]].type)
                counts[table.name] += batch.num_rows
                for key, values in _converted(arrays, columns, codes, number, table.name).items():
                    parts.setdefault(key, []).append(values)
        except (_arrow("pyarrow").ArrowException, OSError) as problem:
            raise _unreadable(table.name, problem) from None
    if not parts or not sum(map(len, parts["rewards"])):
        raise DatasetError(f"{tables[0].name}: has no rows. Record at least one episode.")
    joined = {key: np.concatenate(parts.pop(key)) for key in list(parts)}
    seen = np.isfinite(joined["states"]).all(axis=1)
    time = joined.pop("time", None)
    return _LogRows(time=time, placed=seen, whole_actions=whole, **joined), counts


def _converted(
    arrays: Mapping[str, Any],
    columns: Columns,
    codes: dict[tuple[int, Any], int],
    table: int,
    file: str,
) -> dict[str, np.ndarray]:
    """One batch as NumPy arrays; a value that is missing becomes NaN."""

    def numbers(name: str) -> Float[np.ndarray, " rows"]:
        return _floats(arrays[name], name, file)

    def flags(name: str | None, rows: int) -> Bool[np.ndarray, " rows"]:
        if name is None:
            return np.zeros(rows, bool)
        values = numbers(name)
        if (odd := ~np.isin(values, (0, 1)) & ~np.isnan(values)).any():
            raise DatasetError(
                f"{file}: '{name}' holds {values[np.argmax(odd)]:g}, neither 0 nor 1. Give a "
                "column of flags."
            )
        return values == 1

    states = np.stack([numbers(name) for name in columns.states], axis=1)
    rows = len(states)
    if columns.reward in arrays:
        reward = numbers(columns.reward)
    else:
        formula = _formula(columns.reward)
        with np.errstate(all="ignore"):  # what is not finite is counted and dropped
            value = formula({name: numbers(name) for name in formula.names}, np)
        reward = np.broadcast_to(np.asarray(value, np.float64), (rows,))
    found = {
        "states": states.astype(np.float32),
        "actions": np.stack([numbers(n) for n in columns.actions], axis=1).astype(np.float32),
        "rewards": reward.astype(np.float32),
        "terminal": flags(columns.terminal, rows),
        "timeout": flags(columns.timeout, rows),
        "episode": np.full(rows, codes.setdefault((table, None), len(codes))),
    }
    if columns.episode is not None:
        encoded = arrays[columns.episode].dictionary_encode()
        number = [codes.setdefault((table, v), len(codes)) for v in encoded.dictionary.to_pylist()]
        index = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        found["episode"] = np.array([*number, -1])[index]
    if columns.time is not None:
        found["time"] = _seconds(arrays[columns.time], columns.time, file)
    return found


def _floats(array: Any, name: str, file: str) -> Float[np.ndarray, " rows"]:
    pa = _arrow("pyarrow")
    try:
        cast = array.cast(pa.float64(), safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as problem:
        what, remedy = f"{array.type}, not numbers ({str(problem)[:100]})", "store numbers"
        if (text := _text_in(array)) is not None:
            what = f"text such as '{text}', not numbers"
            if re.fullmatch(r"[+-]?\d*,\d+", text):
                remedy += f": with a decimal point, {text.replace(',', '.')}"
        raise DatasetError(
            f"{file}: '{name}' holds {what}. Choose another column, or {remedy}."
        ) from None
    values: np.ndarray = cast.to_numpy(zero_copy_only=False)
    return values


def _text_in(array: Any) -> str | None:
    """The first text in a column that is no number."""
    for value in array.drop_null():
        text = value.as_py()
        try:
            float(text)
        except ValueError:
            return str(text).strip()[:40]
        except TypeError:  # a column of other things
            return None
    return None


def _seconds(array: Any, name: str, file: str) -> Float[np.ndarray, " rows"]:
    """A column of times in seconds: dates and times, or numbers of whatever unit."""
    pa, types = _arrow("pyarrow"), _arrow("pyarrow.types")
    if types.is_string(array.type) or types.is_large_string(array.type):
        try:
            array = array.cast(pa.timestamp("us"))
        except pa.ArrowInvalid:
            raise DatasetError(
                f"{file}: '{name}' holds text that is no time, such as "
                f"'{array.drop_null()[0].as_py() if len(array.drop_null()) else ''}'. Store ISO "
                "times (2026-01-31T12:00:00) or numbers."
            ) from None
    if types.is_timestamp(array.type) or types.is_date(array.type):
        microseconds = array.cast(pa.timestamp("us")).cast(pa.int64())
        return _floats(microseconds, name, file) / 1e6
    return _floats(array, name, file)


# --- From a log to transitions ---------------------------------------------------------------


def steps_of(
    tables: Sequence[LogTable],
    given: Mapping[str, Any],
    *,
    reward_at: RewardAt = "same",
    gap: float | None = GAP,
    action_bounds: tuple[Bound, Bound] | None = None,
) -> Imported:
    """All steps that some tables hold.

    Args:
        given: roles of `Columns` by name; those that are missing are guessed.
        reward_at: a row's reward is that of its own action ("same"), or of the action of the row
            before ("next").
        gap: a time step longer than this many usual ones ends an episode; none for no such end.
        action_bounds: low and high of the actions, one value or one each; if not given, the range
            of the data, which is a warning.
    """
    if gap is not None and not gap >= 1:
        raise DatasetError(
            f"a gap longer than {gap:g} usual steps would end an episode at every row. Give a "
            "factor of at least 1, or none (--gap)."
        )
    first = tables[0]
    columns, guessed = choose_columns(list(first.columns), first.columns, given, first.name)
    _refuse_doubles(columns, first.name)
    for table in tables[1:]:
        if missing := [c for c in columns.needed(first.columns) if c not in table.columns]:
            raise DatasetError(
                f"{table.name}: has no column '{missing[0]}', which {first.name} has. Import them "
                "one by one, or rename the column."
            )
    notes = _Notes(first.name if len(tables) == 1 else f"{first.name} and {len(tables) - 1} more")
    _note_unused(first, columns, notes)
    if reward_at == "same":
        _note_terminal_reward(first, columns, notes)
    log, counts = _read(tables, columns)
    _refuse_flags_everywhere(log, columns, notes.file)
    flags = int(log.terminal.sum())
    log = _complete(_ordered(_placed(log), notes), notes)
    begins = _whole_steps(log, _beginnings(log, gap, notes), reward_at, notes)
    _look_for_repeats(log, begins, notes)
    arrays = _transitions(log, begins, reward_at, notes)
    notes(
        "rows with the terminal flag to which no step leads, so that the flag is lost",
        "The row needs its states and a time of its own, and the row above it, of the same "
        "episode, an action; --reward-at says which of the two needs the reward",
        flags - int(arrays["terminals"].sum()),
    )
    if action_bounds is None:
        arrays["actions"], action_bounds = _guessed_bounds(
            arrays["actions"], log.whole_actions, notes
        )
    last_rows = int((arrays["terminals"] | arrays["timeouts"]).sum())
    return Imported(arrays, action_bounds, columns, guessed, notes.findings, counts, last_rows)


class _Notes:
    """What is noticed, as findings about a file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.findings: list[Finding] = []

    def __call__(self, what: str, remedy: str, count: int | None = None) -> None:
        """Note something; with a `count`, that it happened so often, unless it never did."""
        if count != 0:
            message = what if count is None else f"{what}: {count:,}"
            self.findings.append(Finding("warning", self.file, None, None, message, remedy))


def _note_unused(table: LogTable, columns: Columns, notes: _Notes) -> None:
    used = set(columns.needed(table.columns))
    text = [name for name, numeric in table.columns.items() if not numeric and name not in used]
    if text:
        notes(
            f"columns of text that are not used: {', '.join(text)}",
            "If one should hold numbers, look for words, units or decimal commas in it",
        )


def _note_terminal_reward(table: LogTable, columns: Columns, notes: _Notes) -> None:
    """The reward of a terminal row is that of an action after the end, which no step has."""
    if columns.terminal in _reward_columns(columns.reward, set(table.columns)):
        notes(
            f"the reward '{columns.reward}' uses the terminal flag '{columns.terminal}', and never "
            "counts where that is set: a row's reward is that of its own action, and no action "
            "follows a terminal state",
            "With --reward-at next it counts: a row's reward is that of the step into it, and "
            "made of that row's columns",
        )


def _refuse_flags_everywhere(log: _LogRows, columns: Columns, file: str) -> None:
    """A flag that is set in every row leaves no row that could lead to another."""
    for role, flags in (("terminal", log.terminal), ("timeout", log.timeout)):
        if flags.all():
            raise DatasetError(
                f"{file}: '{getattr(columns, role)}' ({role}) is 1 in every row, so that each ends "
                "an episode and nothing follows on anything. Give a column that is 1 in the last "
                f"rows of episodes alone: --{role} NAME."
            )


def _placed(log: _LogRows) -> _LogRows:
    """A row without a time or an episode is where the log has it: after the row above it."""

    def from_above(values: np.ndarray, known: Bool[np.ndarray, " rows"]) -> np.ndarray:
        log.placed &= known
        return values[np.maximum.accumulate(np.where(known, np.arange(len(log)), 0))]

    if log.time is not None:
        log.time = from_above(log.time, np.isfinite(log.time))
    log.episode = from_above(log.episode, log.episode >= 0)
    return log


def _ordered(log: _LogRows, notes: _Notes) -> _LogRows:
    """Rows of an episode together and by time; those that come twice once."""
    runs = log.episode[np.insert(np.diff(log.episode) != 0, 0, True)]
    ids, place, parts = np.unique(runs, return_index=True, return_counts=True)
    time = np.zeros(len(log)) if log.time is None else log.time
    backwards = int(((np.diff(log.episode) == 0) & (np.diff(time) < 0)).sum())
    notes("rows earlier than the row above them, sorted by time", "Check the clock", backwards)
    notes(
        "episodes whose rows lie apart, put together",
        "Check that no episode id is used twice",
        int((parts > 1).sum()),
    )
    if backwards or (parts > 1).any():
        rank = place.argsort().argsort()  # in the order of the log
        log = log.take(np.lexsort((time, rank[np.searchsorted(ids, log.episode)])))
    if log.time is not None:
        complete = log.placed & np.isfinite(log.actions).all(axis=1) & np.isfinite(log.rewards)
        both = log.placed[1:] & complete[:-1]  # a row that has less does not stand for another
        twice = both & (np.diff(log.episode) == 0) & (np.diff(log.time) == 0)
        notes(
            "rows with the time of the row before them, left out",
            "Keep one row per time step",
            int(twice.sum()),
        )
        log = log.take(np.flatnonzero(~np.insert(twice, 0, False)))
    return log


def _complete(log: _LogRows, notes: _Notes) -> _LogRows:
    """Rows whose state is known. No step leads over one that is left out: its episode ends before
    it, and another begins after it."""
    notes(
        "rows without a state, a time or an episode, or with one that is not finite, left out; an "
        "episode ends at each",
        "Fill them before the import if the values are known",
        int((~log.placed).sum()),
    )
    if not log.placed.any():
        raise _nothing_measured(notes)
    left_out = np.cumsum(~log.placed)[log.placed]
    log = log.take(np.flatnonzero(log.placed))
    begins = (np.diff(log.episode) != 0) | (np.diff(left_out) != 0)
    log.episode = np.cumsum(np.insert(begins, 0, True))
    return log


def _nothing_measured(notes: _Notes) -> DatasetError:
    return DatasetError(
        f"{notes.file}: every row has a value that is missing or not finite. Look at the columns "
        "that were chosen (--dry-run)."
    )


def _beginnings(log: _LogRows, gap: float | None, notes: _Notes) -> Bool[np.ndarray, " rows"]:
    """Where episodes begin: at another id, after a flag, after a gap in time."""
    begins = np.insert(np.diff(log.episode) != 0, 0, True)
    begins[1:] |= (log.terminal | log.timeout)[:-1]
    inside = ~begins[1:]
    if log.time is None or not inside.any():
        return begins
    step = np.diff(log.time)
    usual = float(np.median(step[inside]))
    long = inside & (step > usual * (np.inf if gap is None else gap))
    off = inside & ~long & (np.abs(step - usual) > IRREGULAR * usual)
    notes(
        f"time steps off by more than half of the usual one ({usual:g})",
        "A world learns one time step: resample the log, or leave those rows out",
        int(off.sum()),
    )
    notes(
        f"gaps in time, longer than {gap} usual steps of {usual:g}; an episode ends at each",
        "Give --gap FACTOR for another limit, or --gap none to read over them",
        int(long.sum()),
    )
    begins[1:] |= long
    return begins


def _whole_steps(
    log: _LogRows, begins: Bool[np.ndarray, " rows"], reward_at: RewardAt, notes: _Notes
) -> Bool[np.ndarray, " rows"]:
    """Where episodes begin, also after a step without its action or its reward. The last row of an
    episode needs no action, and its first no reward that belongs to an action before."""
    paid = np.isfinite(log.rewards)
    known = np.isfinite(log.actions).all(axis=1)[:-1]
    known &= paid[1:] if reward_at == "next" else paid[:-1]
    inside = ~begins[1:]
    if inside.any() and not known[inside].any():
        raise _nothing_measured(notes)
    notes(
        "steps with an action or a reward that is missing or not finite, left out; an episode ends "
        "at each",
        "Fill them before the import if the values are known",
        int((inside & ~known).sum()),
    )
    return np.insert(begins[1:] | ~known, 0, True)


def _look_for_repeats(log: _LogRows, begins: Bool[np.ndarray, " rows"], notes: _Notes) -> None:
    """A sensor that is read more often than it measures says the same again."""
    if len(log) < 2:
        return
    same = (log.states[1:] == log.states[:-1]).all(axis=1) & ~begins[1:]
    share = same.mean()
    if share > 0.02:
        notes(
            f"rows ({share:.0%}) that repeat all states of the row before",
            "If sensors are read more often than they measure, keep every n-th row",
            int(same.sum()),
        )


def _transitions(
    log: _LogRows, begins: Bool[np.ndarray, " rows"], reward_at: RewardAt, notes: _Notes
) -> dict[str, Any]:
    """Rows with a successor, in the manner of `Dataset.from_arrays`."""
    last = np.append(begins[1:], True)
    steps = np.flatnonzero(~last)
    alone = int((begins & last).sum())
    notes("episodes of a single row, which is no step, left out", "Check the episode ids", alone)
    if not len(steps):
        raise DatasetError(
            f"{notes.file}: no episode has two rows, so that nothing follows on anything. Check "
            "the column of episodes."
        )
    ends = last[steps + 1]
    return {
        "states": log.states[steps],
        "actions": log.actions[steps],
        "rewards": log.rewards[steps + (reward_at == "next")],
        "terminals": ends & log.terminal[steps + 1],
        "timeouts": ends & ~log.terminal[steps + 1],
        "next_states": log.states[steps + 1],
    }


def _guessed_bounds(
    actions: Float[np.ndarray, "n a"], whole: bool, notes: _Notes
) -> tuple[np.ndarray, tuple[Bound, Bound] | None]:
    """Actions and their bounds where nobody gave any: numbers of discrete actions, or the range
    that the data uses. Either is a warning with numbers."""
    low, high = actions.min(axis=0), actions.max(axis=0)
    values = np.unique(actions) if whole else np.empty(0)
    if whole and low[0] >= 0 and len(values) <= MOST_DISCRETE:
        notes(
            f"the action is one of {len(values)} whole numbers, {low[0]:g} to {high[0]:g}: taken "
            f"for the number of one of {int(high[0]) + 1} discrete actions",
            "If it is a quantity, give its bounds: --action-low, --action-high",
        )
        return actions[:, 0].astype(np.int64), None
    constant = high <= low
    high = np.where(constant, low + 1, high)
    shown = ", ".join(f"[{a:g}, {b:g}]" for a, b in zip(low, high, strict=True))
    notes(
        f"bounds of the actions are guessed from the data: {shown}",
        "Give what the plant allows: --action-low, --action-high; a policy uses all of it",
    )
    return actions, (low, high)
