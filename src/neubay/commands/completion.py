"""`neubay completion`: a script by which a shell completes commands and flags."""

import contextlib
import importlib
import inspect
import io
import re
from collections.abc import Callable
from typing import Literal

import tyro

from neubay.commands import COMMANDS
from neubay.commands.text import say


def completion(shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]]) -> None:
    """Print a script that makes a shell complete commands and flags.

    Put it where the shell looks for such scripts, or into its start file:

    bash: neubay completion bash > ~/.local/share/bash-completion/completions/neubay

    zsh: neubay completion zsh > ~/.zfunc/_neubay, with ~/.zfunc in fpath before compinit

    fish: neubay completion fish > ~/.config/fish/completions/neubay.fish

    Args:
        shell: Whose script to print.
    """
    scripts: dict[str, Callable[[dict[str, list[str]]], str]] = {
        "bash": _bash,
        "zsh": _zsh,
        "fish": _fish,
    }
    say(scripts[shell]({name: _flags(name) for name in COMMANDS}))


def _flags(name: str) -> list[str]:
    """The flags that the help of a command shows."""
    module, function = COMMANDS[name][0].split(":")
    command = getattr(importlib.import_module(f"neubay.commands.{module}"), function)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        if list(inspect.signature(command).parameters) == ["arguments"]:
            command(["--help"])
        else:
            tyro.cli(command, args=["--help"], prog="neubay")
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][\w.-]*[\w]", shown.getvalue())))


def _words(flags: dict[str, list[str]], case: str) -> tuple[str, list[str], list[str]]:
    """The first words of commands; and what may follow one word, or two, as cases of a shell."""
    first = sorted({name.split()[0] for name in COMMANDS})
    after_one = {
        word: [name.split()[1] for name in COMMANDS if name.startswith(f"{word} ")]
        + flags.get(word, [])
        for word in first
    }
    after_two = {name: flags[name] for name in COMMANDS if " " in name}
    singles, pairs = (
        [case.format(words, " ".join(following)) for words, following in after.items()]
        for after in (after_one, after_two)
    )
    return " ".join(first), singles, pairs


def _bash(flags: dict[str, list[str]]) -> str:
    first, singles, pairs = _words(flags, '    "{}") words="{}" ;;')
    return "\n".join(
        [
            "_neubay() {",
            '  local words="" typed="${COMP_WORDS[COMP_CWORD]}"',
            f'  if [ "$COMP_CWORD" = 1 ]; then words="{first}"; else',
            '    case "${COMP_WORDS[1]}" in',
            *singles,
            "    esac",
            '    [ "$COMP_CWORD" -gt 2 ] && case "${COMP_WORDS[1]} ${COMP_WORDS[2]}" in',
            *pairs,
            "    esac",
            "  fi",
            '  COMPREPLY=($(compgen -W "$words" -- "$typed"))',
            "}",
            "complete -o default -F _neubay neubay",
        ]
    )


def _zsh(flags: dict[str, list[str]]) -> str:
    first, singles, pairs = _words(flags, '    ("{}") found=({}) ;;')
    return "\n".join(
        [
            "#compdef neubay",
            "_neubay() {",
            "  local -a found",
            f"  if (( CURRENT == 2 )); then found=({first}); else",
            '    case "$words[2]" in',
            *singles,
            "    esac",
            '    (( CURRENT > 3 )) && case "$words[2] $words[3]" in',
            *pairs,
            "    esac",
            "    _files",
            "  fi",
            "  compadd -a found",
            "}",
            "compdef _neubay neubay",
        ]
    )


def _fish(flags: dict[str, list[str]]) -> str:
    lines = []
    for name, (_, text) in COMMANDS.items():
        first, _, second = name.partition(" ")
        described = text.replace("\\", "\\\\").replace("'", "\\'")
        at_start = "__fish_use_subcommand"
        seen = f"__fish_seen_subcommand_from {first}"
        if second:
            lines.append(f"complete -c neubay -n '{seen}' -a {second} -d '{described}'")
            seen += f"; and __fish_seen_subcommand_from {second}"
        lines.append(f"complete -c neubay -n '{at_start}' -a {first}")
        lines += [
            f"complete -c neubay -n '{seen}' -l {flag.removeprefix('--')}" for flag in flags[name]
        ]
    return "\n".join(dict.fromkeys(lines))
