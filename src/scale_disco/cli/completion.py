"""`disco completion`: scripts that complete commands, options and values in a shell."""

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

Create the folder if it is missing, and start a new shell afterwards. bash reads this folder if the package
bash-completion is installed; without it, write the script to any file and `source` it in ~/.bashrc. zsh reads the
folders of its fpath: put `fpath=(~/.zsh/completions $fpath); autoload -U compinit; compinit` into ~/.zshrc. The script
is for this version of disco; write it again after an update.
"""


@dataclass(frozen=True)
class Argument:
    """An option or a positional argument, as completion scripts need it."""

    names: list[str]  # empty for a positional argument
    about: str
    most: int  # maximum number of values
    words: list[str]
    place: str  # "file", "folder" or neither
    repeated: bool


def add(commands: Any) -> None:
    """Add the command to the parser."""
    completion = add_command(commands, "completion", run, "print a shell completion script", _EXAMPLES)
    completion.add_argument("shell", choices=sorted(_SCRIPTS), help="shell of the script")


def run(options: argparse.Namespace) -> None:
    """Print the script."""
    script = _SCRIPTS[options.shell](options.parsers)
    show(options, {"shell": options.shell, "script": script}, script.rstrip())


_MANY = 99
_MOST = {None: 1, "?": 1, "*": _MANY, "+": _MANY}


def arguments_of(parser: argparse.ArgumentParser) -> list[Argument]:
    """Return the arguments of a command, without hidden ones."""
    arguments = []
    for action in parser._actions:
        if action.help != argparse.SUPPRESS:
            about = " ".join((action.help or "").split()).replace("%%", "%")
            most = action.nargs if isinstance(action.nargs, int) else _MOST[action.nargs]
            words = [str(word) for word in action.choices or getattr(action, "suggestions", [])]
            folder = action.metavar in ("DIR", "RUN") or getattr(action, "folders", False)
            place = "folder" if folder else "file" if action.type is Path else ""
            repeated = isinstance(action, argparse._AppendAction)
            arguments.append(Argument(list(action.option_strings), about, most, words, place, repeated))
    return arguments


def bash(commands: Mapping[str, argparse.ArgumentParser]) -> str:
    """Return the bash script: a table of completions by command and option, or by command and number of words."""
    rows = [f"        '') words='{' '.join([*commands, '--help', '--version'])}' ;;"]
    for command, parser in commands.items():
        every = arguments_of(parser)
        place = 0
        for argument in every:
            values = f"most={argument.most} words='{' '.join(argument.words)}' place={argument.place}"
            if argument.names and argument.most:
                keys = "|".join(f"'{command} {name}'" for name in argument.names)
                rows.append(f"        {keys}) {values} ;;")
            elif not argument.names:
                rows.append(f"        '{command} '{place if argument.most < _MANY else '[0-9]*'}) {values} ;;")
                place += argument.most
        names = " ".join(name for argument in every for name in argument.names)
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
    """Return the zsh script: a call of `_arguments` per command."""
    names = [_quoted(f"{command}:{_summary(parser)}") for command, parser in commands.items()]
    cases = []
    for command, parser in commands.items():
        specs = []
        for argument in arguments_of(parser):
            what = f":{argument.names[-1].lstrip('-') if argument.names else 'argument'}:{_zsh_values(argument)}"
            many = f":*-*{what}" if argument.names else f"*{what}"
            values = many if argument.most == _MANY else what * argument.most
            about = argument.about.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")
            equals, star = "=" if argument.most else "", "*" if argument.repeated else ""
            specs += [f"{star}{name}{equals}[{about}]{values}" for name in argument.names] or [values]
        lines = " \\\n            ".join(_quoted(spec) for spec in specs)
        cases.append(f"        {command}) _arguments \\\n            {lines} ;;")
    return _ZSH.replace("NAMES", " ".join(names)).replace("CASES", "\n".join(cases))


def _zsh_values(argument: Argument) -> str:
    words, files = f"({' '.join(argument.words)})", {"file": "_files", "folder": "_files -/", "": ""}[argument.place]
    if argument.words and files:
        return f'{{_alternative "words\\:word\\:{words}" "files\\:file\\:{files}"}}'
    return files or (words if argument.words else " ")


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
    """Return the fish script: a line per command, option and positional argument."""
    lines = ["# Completion of disco for fish, made by `disco completion fish`.", "complete -c disco -f"]
    first = "complete -c disco -n 'test (count (commandline -opc)) -eq 1'"
    lines += [f"{first} -a {name} -d {_quoted(_summary(parser))}" for name, parser in commands.items()]
    lines += [f"{first} -l {name}" for name in ("help", "version")]
    for command, parser in commands.items():
        where = f'set -l words (commandline -opc); test "$words[2]" = {command}'
        for argument in arguments_of(parser):
            folders = ["(__fish_complete_directories)"] if argument.place == "folder" else []
            values = " ".join(argument.words + folders)
            offer = f" -a {_quoted(values)}" if values else ""
            kind = " -r -F" if argument.place == "file" else " -x" if argument.most else ""
            names = "".join(f" {'-l' if name.startswith('--') else '-s'} {name.lstrip('-')}" for name in argument.names)
            if names:
                lines.append(f"complete -c disco -n '{where}'{names}{kind}{offer} -d {_quoted(argument.about)}")
                if argument.most == _MANY and values:  # fish completes only the first value by itself
                    last = f'set -l flags (string match -- "-*" $words); and test "$flags[-1]" = {argument.names[-1]}'
                    lines.append(f"complete -c disco -n '{where}; and {last}'{offer}")
            elif values:
                new = "".join(f"; and not contains -- {word} $words" for word in argument.words)
                lines.append(f"complete -c disco -n '{where}{new}'{offer}")
    return "\n".join(lines) + "\n"


def _summary(parser: argparse.ArgumentParser) -> str:
    return (parser.description or "").partition(".")[0]


def _quoted(text: str) -> str:
    """Quote a word for zsh and fish."""
    return "'" + text.replace("'", "'\\''") + "'"


_SCRIPTS = {"bash": bash, "zsh": zsh, "fish": fish}
