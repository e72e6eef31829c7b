"""The command line: find the command, parse its flags from its signature, call it.

Commands are imported only when they are called, so that `neubay --help` is instant.
"""

import contextlib
import difflib
import importlib
import inspect
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

import tyro
from rich.table import Table

from neubay import __version__
from neubay.commands import COMMANDS as COMMANDS
from neubay.commands.text import Console, escape
from neubay.errors import NeubayError, reason
from neubay.runs.cache import keep_compiled_programs


def main(argv: list[str] | None = None) -> NoReturn:
    """Entry point of the `neubay` command; always exits."""
    arguments = sys.argv[1:] if argv is None else argv
    # Without this, JAX takes most of a GPU's memory at once, also from other programs.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    keep_compiled_programs()
    errors = Console(stderr=True)
    try:
        with _terminable():
            code = _dispatch(arguments)
    except NeubayError as error:
        errors.print(f"[bold red]error:[/] {escape(str(error))}")
        code = 2
    except KeyboardInterrupt as stop:
        errors.print("interrupted")
        code = 128 + getattr(stop, "signum", signal.SIGINT)  # as a shell counts
    except BrokenPipeError:  # the reader of our output, such as `head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:  # a full disk, a file without permission
        where = f"{error.filename}: " if error.filename else ""
        errors.print(f"[bold red]error:[/] {escape(where)}{escape(reason(error))}")
        code = 2
    sys.exit(code)


class _Terminated(KeyboardInterrupt):
    signum = signal.SIGTERM


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does: partial files are removed, and it can say how to
    resume."""

    def end(signum: int, frame: FrameType | None) -> NoReturn:
        raise _Terminated

    if threading.current_thread() is not threading.main_thread():  # only that one gets signals
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _dispatch(arguments: list[str]) -> int:
    if arguments in (["--version"], ["-V"]):
        print(f"neubay {__version__}")
        return 0
    for words in (2, 1):
        name = " ".join(arguments[:words])
        if len(arguments) >= words and name in COMMANDS:
            module, function = COMMANDS[name][0].split(":")
            command = getattr(importlib.import_module(f"neubay.commands.{module}"), function)
            rest = _joined(arguments[words:])
            if list(inspect.signature(command).parameters) == ["arguments"]:
                code = command(rest)  # its flags' defaults depend on other flags
            else:
                code = tyro.cli(command, args=rest, prog=f"neubay {name}")
            return code if isinstance(code, int) else 0
    return _overview(arguments)


def _joined(arguments: list[str]) -> list[str]:
    """A value that begins with a minus sign, such as a formula, joined to its flag: argparse would
    take it for a flag. Flags of one dash have one letter."""
    joined: list[str] = []
    for word in arguments:
        follows_flag = bool(joined) and joined[-1].startswith("--") and "=" not in joined[-1]
        if follows_flag and len(word) > 2 and word[0] == "-" and word[1] != "-":
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _overview(arguments: list[str]) -> int:
    """Help for no command, a group of commands, or a word that is no command."""
    wanted = [word for word in arguments if not word.startswith("-")][:2]
    group = [name for name in COMMANDS if wanted and name.split()[0] == wanted[0]]
    named_group = bool(group) and len(wanted) == 1
    asked_for_help = not wanted or named_group or "-h" in arguments or "--help" in arguments
    console = Console(stderr=not asked_for_help)
    if not asked_for_help:
        name = " ".join(wanted)
        close = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
        close = close or difflib.get_close_matches(wanted[0], COMMANDS, n=1, cutoff=0.5)
        hint = f" Did you mean 'neubay {close[0]}'?" if close else ""
        console.print(f"[bold red]error:[/] unknown command '{escape(name)}'.{hint}\n")
    console.print(escape("usage: neubay COMMAND [options]   (-h after a command explains it)\n"))
    table = Table.grid(padding=(0, 2))
    for name in group or COMMANDS:
        table.add_row(f"  [bold]{name}[/]", escape(COMMANDS[name][1]))
    console.print(table)
    return 0 if asked_for_help else 2
