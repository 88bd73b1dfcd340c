"""Completion scripts, run by their shells."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess

import pytest

from scale_disco.cli import main, parsers
from scale_disco.cli.completion import arguments_of, bash
from scale_disco.models import list_models

# Text before the cursor, some words that must be offered, and some that must not.
CURSORS = {
    "the commands": ("disco ", {"basis", "train", "completion"}, {"--scales"}),
    "a part of a command": ("disco eq", {"equivariance"}, {"basis"}),
    "options": ("disco basis --", {"--scales", "--prior", "--json", "--quiet", "--out"}, {"--setting", "basis"}),
    "a part of an option": ("disco basis --pl", {"--plot"}, {"--prior"}),
    "choices": ("disco equivariance --setting ", {"mnist", "mnist+", "stl10"}, {"--json", "image.png"}),
    "models": ("disco train mnist-scale --model mnist/s", {"mnist/sicnn", "mnist/sevf"}, {"mnist/cnn"}),
    "several values": ("disco bench --only layers ", {"scales", "network"}, {"image.png"}),
    "after a value": ("disco basis --kernel-size 3 --mode ", {"nearest", "cubic"}, {"exact"}),
    "a positional": ("disco data ", {"mnist-scale"}, {"image.png"}),
    "after options": ("disco train --epochs 3 ", {"mnist-scale"}, {"image.png"}),
    "files": ("disco basis --plot ", {"image.png", "runs"}, {"--json"}),
    "folders": ("disco test ", {"runs"}, {"image.png"}),
    "the second positional": ("disco table stl10 ", {"runs"}, {"mnist-scale", "image.png"}),
    "experiments": ("disco table ", {"mnist-scale", "stl10"}, {"image.png"}),
    "words and folders": ("disco equivariance --images ", {"photos", "digits", "runs"}, {"image.png"}),
    "shells": ("disco completion ", {"bash", "zsh", "fish"}, {"image.png"}),
    "an unknown command": ("disco nothing ", set(), {"basis", "--json"}),
}


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """Run a program in a shell, in a folder with an image and a folder."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "image.png").write_text("")
    (folder / "runs").mkdir()

    def ask(name, program):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
        call = [name, *(["--norc", "--noprofile"] if name == "bash" else ["-f"] if name == "zsh" else ["-N"])]
        done = subprocess.run([*call, "-c", program], capture_output=True, text=True, cwd=folder, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout

    return ask


def script(name, capsys):
    assert main(["completion", name]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("case", CURSORS)
def test_bash_completes(shell, capsys, case):
    typed, expected, others = CURSORS[case]
    words = typed.split(" ")
    program = (
        script("bash", capsys)
        + f"COMP_WORDS=({' '.join(words[:-1])} '{words[-1]}'); COMP_CWORD={len(words) - 1}\n"
        + "_disco 2> /dev/null; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    offered = set(shell("bash", program).splitlines())
    assert expected <= offered
    assert not others & offered


def test_bash_registers_and_completes_after_equal_signs(shell, capsys):
    program = script("bash", capsys) + "complete -p disco\n"  # bash cuts words at "="
    program += "COMP_WORDS=(disco basis --solver = ''); COMP_CWORD=4; _disco; echo ${COMPREPLY[@]}\n"
    program += "COMP_WORDS=(disco basis --solver =); COMP_CWORD=3; _disco; echo ${COMPREPLY[@]}\n"
    assert shell("bash", program).splitlines() == ["complete -F _disco disco", "exact gradient", "exact gradient"]


def test_bash_counts_positional_arguments(shell):
    parser = argparse.ArgumentParser()
    for name, words in (("first", ["a", "b"]), ("second", ["c", "d"])):
        parser.add_argument(name, choices=words)
    program = bash({"do": parser})
    for words in ("''", "a ''", "a c ''"):
        program += f"COMP_WORDS=(disco do {words}); COMP_CWORD={2 + words.count(' ')}; _disco; echo ${{COMPREPLY[@]}}\n"
    assert shell("bash", program).splitlines() == ["a b", "c d", "-h --help"]


@pytest.mark.parametrize("case", CURSORS)
def test_fish_completes(shell, capsys, case):
    typed, expected, others = CURSORS[case]
    program = script("fish", capsys) + f'complete -C "{typed}"'
    offered = {line.split("\t")[0].rstrip("/") for line in shell("fish", program).splitlines()}
    assert expected <= offered
    assert not others & offered


# zsh completes only at a terminal: type the line into one and list the completions.
ZSH = """
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z 'PS1=; autoload -U compinit; compinit -u -D; LISTMAX=0; zstyle ":completion:*" list-separator "#"'
zpty -w z 'offer() { zle list-choices; zle -R; print -n ENDED }; zle -N offer; bindkey "^I" offer'
zpty -w z 'stty cols 250; source ./_disco; print rea""dy'
zpty -r z out '*ready*'
zpty -w -n z $'TYPED\\t'
zpty -r z out '*ENDED*'
print -r -- $out
zpty -d z
"""


@pytest.mark.parametrize("case", CURSORS)
def test_zsh_completes(shell, capsys, case):
    typed, expected, others = CURSORS[case]
    program = f"cat > _disco <<'END'\n{script('zsh', capsys)}END\n" + ZSH.replace("TYPED", typed)
    screen = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", " ", shell("zsh", program))
    lines = [line.partition("#")[0] for line in screen.splitlines() if not line.strip().startswith("disco ")]
    offered = {word.rstrip("/") for line in lines for word in line.split()}
    assert expected <= offered, screen
    assert not others & offered, screen


def test_every_option_is_in_every_script(capsys):
    _, commands = parsers()
    scripts = {name: script(name, capsys) for name in ("bash", "zsh", "fish")}
    for command, parser in commands.items():
        options = {name for argument in arguments_of(parser) for name in argument.names if name.startswith("--")}
        assert {"--json", "--quiet", "--threads", "--debug", "--help"} <= options
        for option in options:
            assert option in re.search(rf"'{command} '\*\) words='(.*)' ;;", scripts["bash"])[1].split()
            assert re.search(
                rf"'\*?{option}=?\[", scripts["zsh"].partition(f"\n        {command}) ")[2].partition(" ;;\n")[0]
            )
            assert re.search(rf"= {command}'.* -l {option[2:]}( |$)", scripts["fish"], flags=re.MULTILINE)


def test_model_names_are_completed(capsys):
    assert all(f" {name}" in script("bash", capsys).replace("'", " ") for name in list_models("mnist"))


def test_scripts_as_json(capsys):
    assert main(["completion", "fish", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["shell"] == "fish"
    assert document["script"] == script("fish", capsys)
