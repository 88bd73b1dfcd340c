"""`disco completion`: a script that teaches a shell the commands, their options and values."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..tasks.io.terminal import add_command, show

_EXAMPLES = """\
  disco completion bash > ~/.local/share/bash-completion/completions/disco
  disco completion zsh > ~/.zsh/completions/_disco
  disco completion fish > ~/.config/fish/completions/disco.fish

Make the folder if it is missing, and start a new shell afterwards. bash looks there if the package bash-completion is
installed; without it, write the script to any file and `source` that in ~/.bashrc. zsh looks in the folders of its
fpath: have `fpath=(~/.zsh/completions $fpath); autoload -U compinit; compinit` in ~/.zshrc. The script knows this
version of disco; write it anew after an update.
"""


@dataclass(frozen=True)
class Argument:
    """What a shell has to know about an option or a positional argument."""

    names: list[str]  # none for a positional one
    about: str
    most: int  # values that it takes
    words: list[str]
    place: str  # "file", "folder" or neither
    repeated: bool


def add(commands: Any) -> None:
    """Add the command to the parser."""
    completion = add_command(commands, "completion", run, "print a script that completes commands on TAB", _EXAMPLES)
    completion.add_argument("shell", choices=sorted(_SCRIPTS), help="the shell to write for")


def run(options: argparse.Namespace) -> None:
    """Print the script."""
    script = _SCRIPTS[options.shell](options.parsers)
    show(options, {"shell": options.shell, "script": script}, script.rstrip())


def arguments_of(parser: argparse.ArgumentParser) -> list[Argument]:
    """The arguments of a command, without those hidden from its help."""
    return [_argument(action) for action in parser._actions if action.help != argparse.SUPPRESS]


def _argument(action: argparse.Action) -> Argument:
    many = {None: 1, "?": 1, "*": _MANY, "+": _MANY}
    folder = action.metavar in ("DIR", "RUN") or getattr(action, "folders", False)
    return Argument(
        list(action.option_strings),
        " ".join((action.help or "").split()).replace("%%", "%"),
        action.nargs if isinstance(action.nargs, int) else many[action.nargs],
        [str(word) for word in action.choices or getattr(action, "suggestions", [])],
        "folder" if folder else "file" if action.type is Path else "",
        isinstance(action, argparse._AppendAction),
    )


_MANY = 99


def bash(commands: Mapping[str, argparse.ArgumentParser]) -> str:
    """A table of what may follow: by command and option, or by command and the number of words before."""
    rows = [f"        '') words='{' '.join([*commands, '--help', '--version'])}' ;;"]
    for command, parser in commands.items():
        every = arguments_of(parser)
        place = 0
        for one in every:
            values = f"most={one.most} words='{' '.join(one.words)}' place={one.place}"
            if one.names and one.most:
                keys = "|".join(f"'{command} {name}'" for name in one.names)
                rows.append(f"        {keys}) {values} ;;")
            elif not one.names:
                rows.append(f"        '{command} '{place if one.most < _MANY else '[0-9]*'}) {values} ;;")
                place += one.most
        names = " ".join(name for one in every for name in one.names)
        rows.append(f"        '{command} '*) words='{names}' ;;")
    return _BASH.replace("ROWS", "\n".join(rows))


_BASH = """\
# Completion of disco for bash, made by `disco completion bash`.
_disco_values() {
    most=0 words= place=
    case $1 in
ROWS
    esac
}
_disco() {
    local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} most=0 words= place= taken=0 before=0 i line
    COMPREPLY=()
    [[ $word == '=' ]] && word=
    if ((COMP_CWORD == 1)); then
        _disco_values ''
    else
        for ((i = 2; i < COMP_CWORD; i++)); do
            case ${COMP_WORDS[i]} in
                =) ;;
                -*) taken=0; _disco_values "$command ${COMP_WORDS[i]}" ;;
                *) if ((taken < most)); then ((taken += 1)); else ((before += 1)); fi ;;
            esac
        done
        if [[ $word == -* ]]; then
            _disco_values "$command -"
        elif ((taken >= most)); then
            _disco_values "$command $before"
        fi
    fi
    [[ $place ]] && compopt -o filenames 2> /dev/null
    while IFS= read -r line; do COMPREPLY+=("$line"); done < <(
        compgen -W "$words" -- "$word"
        [[ $place == file ]] && compgen -f -- "$word"
        [[ $place == folder ]] && compgen -d -- "$word"
    )
}
complete -F _disco disco
"""


def zsh(commands: Mapping[str, argparse.ArgumentParser]) -> str:
    """One call of zsh's own `_arguments` per command."""
    names = [_quoted(f"{command}:{_summary(parser)}") for command, parser in commands.items()]
    cases = []
    for command, parser in commands.items():
        specs = []
        for one in arguments_of(parser):
            what = f":{one.names[-1].lstrip('-') if one.names else 'argument'}:{_zsh_values(one)}"
            many = f":*-*{what}" if one.names else f"*{what}"
            values = many if one.most == _MANY else what * one.most
            about = one.about.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")
            star = "*" if one.repeated else ""
            specs += [f"{star}{name}{'=' if one.most else ''}[{about}]{values}" for name in one.names] or [values]
        lines = " \\\n            ".join(_quoted(spec) for spec in specs)
        cases.append(f"        {command}) _arguments \\\n            {lines} ;;")
    return _ZSH.replace("NAMES", " ".join(names)).replace("CASES", "\n".join(cases))


def _zsh_values(one: Argument) -> str:
    words, files = f"({' '.join(one.words)})", {"file": "_files", "folder": "_files -/", "": ""}[one.place]
    if one.words and files:
        return f'{{_alternative "words\\:word\\:{words}" "files\\:file\\:{files}"}}'
    return files or (words if one.words else " ")


_ZSH = """\
#compdef disco
# Completion of disco for zsh, made by `disco completion zsh`.
_disco() {
    local -a commands=(NAMES)
    if ((CURRENT == 2)); then
        _describe command commands
        _arguments '--help[show commands]' '--version[show the version]'
        return
    fi
    local command=$words[2]
    shift words
    ((CURRENT -= 1))
    case $command in
CASES
    esac
}
if [[ $funcstack[1] == _disco ]]; then _disco; else compdef _disco disco; fi
"""


def fish(commands: Mapping[str, argparse.ArgumentParser]) -> str:
    """One line per command, option and positional argument."""
    lines = ["# Completion of disco for fish, made by `disco completion fish`.", "complete -c disco -f"]
    first = "-n 'test (count (commandline -opc)) -eq 1'"
    lines += [f"complete -c disco {first} -a {name} -d {_quoted(_summary(one))}" for name, one in commands.items()]
    lines += [f"complete -c disco {first} -l {name}" for name in ("help", "version")]
    for command, parser in commands.items():
        where = f'set -l words (commandline -opc); test "$words[2]" = {command}'
        for one in arguments_of(parser):
            values = " ".join([*one.words, *(["(__fish_complete_directories)"] if one.place == "folder" else [])])
            offer = f" -a {_quoted(values)}" if values else ""
            kind = " -r -F" if one.place == "file" else " -x" if one.most else ""
            names = "".join(f" {'-l' if name.startswith('--') else '-s'} {name.lstrip('-')}" for name in one.names)
            if names:
                lines.append(f"complete -c disco -n '{where}'{names}{kind}{offer} -d {_quoted(one.about)}")
                if one.most == _MANY and values:  # fish itself knows of the first value only
                    last = f'set -l flags (string match -- "-*" $words); and test "$flags[-1]" = {one.names[-1]}'
                    lines.append(f"complete -c disco -n '{where}; and {last}'{offer}")
            elif values:
                new = "".join(f"; and not contains -- {word} $words" for word in one.words)
                lines.append(f"complete -c disco -n '{where}{new}'{offer}")
    return "\n".join(lines) + "\n"


def _summary(parser: argparse.ArgumentParser) -> str:
    return (parser.description or "").partition(".")[0]


def _quoted(text: str) -> str:
    """A word for zsh and fish."""
    return "'" + text.replace("'", "'\\''") + "'"


_SCRIPTS = {"bash": bash, "zsh": zsh, "fish": fish}
