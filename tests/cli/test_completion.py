"""Completion scripts, run by their shells."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from scale_disco.cli import main
from scale_disco.models import list_models
from tests.cli.commands import ALL

# Text before the cursor, some words that must be offered, and some that must not.
CURSORS = {
    "the commands": ("disco ", {"basis", "train", "completion"}, {"--scales"}),
    "a part of a command": ("disco eq", {"equivariance"}, {"basis"}),
    "options": ("disco basis --", {"--scales", "--prior", "--json", "--quiet", "--out"}, {"--setting", "basis"}),
    "a part of an option": ("disco basis --pl", {"--plot"}, {"--prior"}),
    "choices": ("disco equivariance --setting ", {"mnist", "mnist+", "stl10"}, {"--json", "image.png"}),
    "models": ("disco train mnist-scale --model mnist/s", {"mnist/sicnn", "mnist/sevf"}, {"mnist/cnn"}),
    "options of a subcommand": ("disco data zoom --", {"--png", "--test-count"}, {"--mnist", "--check"}),
    "after a value": ("disco basis --kernel-size 3 --mode ", {"nearest", "cubic"}, {"exact"}),
    "subcommands": ("disco data ", {"mnist-scale", "stl10", "zoom"}, {"image.png"}),
    "files": ("disco basis --plot ", {"image.png", "runs"}, {"--json"}),
    "folders": ("disco test ", {"runs", "scene"}, set()),
    "experiments": ("disco table ", {"mnist-scale", "stl10"}, {"image.png"}),
    "shells": ("disco completion ", {"bash", "zsh", "fish"}, {"image.png"}),
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
        call = [name, *(["--norc", "--noprofile"] if name == "bash" else ["-N"])]
        done = subprocess.run([*call, "-c", program], capture_output=True, text=True, cwd=folder)
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


def test_bash_registers_the_command(shell, capsys):
    assert "_disco disco" in shell("bash", script("bash", capsys) + "complete -p disco\n")


@pytest.mark.parametrize("case", CURSORS)
def test_fish_completes(shell, capsys, case):
    typed, expected, others = CURSORS[case]
    program = script("fish", capsys) + f'complete -C "{typed}"'
    offered = {line.split("\t")[0].rstrip("/") for line in shell("fish", program).splitlines()}
    assert expected <= offered
    assert not others & offered


def test_every_option_is_in_every_script(capsys):
    for name in ("bash", "zsh", "fish"):
        printed = script(name, capsys)
        for command in ALL:
            for option, field in command.fields.items():
                assert field.metadata["positional"] or option.replace("_", "-") in printed
        for model in list_models("mnist"):
            assert model in printed


def test_scripts_as_json(capsys):
    assert main(["completion", "fish", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["shell"] == "fish"
    assert document["script"].rstrip() == script("fish", capsys).rstrip()
