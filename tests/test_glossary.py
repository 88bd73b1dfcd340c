"""The words of the field: private words for its terms fail here, wherever a reader could meet them.

`python tests/test_glossary.py [PATH ...]` lists them.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
READ = ("src", "docs", "results", "tests", "examples", "benchmarks", "tools", ".github", "*.md")
SUFFIXES = (".py", ".md", ".rst")

# A private word, and what to write instead.
WORDS = {
    r"no number|not a number|NoNumber\w*|no_number\w*": "NaN or infinity, non-finite",
    r"slopes?|\w+_slope": "gradient",
    r"(the )?way back|forth and back": "backward pass, forward and backward",
    r"(the )?way down|goes? down by": "downsampling",
    r"(?<![Ss]tandard )deviations?": "standard deviation, std",
    r"part of (the )?(frames|numbers|training|images|pixels)": "fraction of",
    r"another one, at its largest|at its largest": "peak learning rate",
    r"numbers that are dropped": "dropout probability",
    r"channels of a pixel side by side": "channels_last",
    r"whole ratios?": "integer ratio",
    r"Lessons?|Exams?|Courses?|Shown|Diary|lesson|exam": "training data, evaluation, schedule, Dataset, callback",
    r"(?<!shared/)facts|check_facts": "metadata",
    r"Recipe\.over|factor\(part\)": "make_optimizer, lr_multiplier(progress)",
    r"(?<!pytest[.])marks?(?!=)": "fingerprint, cache key",
    r"read-outs?": "readout",
    r"for ever": "forever; static-box baseline",
    r"frozen tracker|FrozenTracker": "static-box baseline",
    r"settings of motion": "motion hyper-parameters",
    r"views? of (a|the) tracker": "search crop",
    r"footage|films?|made videos?|videos that zoom": "video; zooming sequences; synthetic sequences",
    r"pictures?|photographs?": "image; photo only where it must be a photograph",
    r"looks? large|things look|how large things": "apparent scale",
    r"mends?|mended|anew|beside|in company": "fix, again, next to, in a batch",
    r"hostile": "malformed or malicious",
    r"realisations?": "split; realization once",
    r"promises?|promised": "guarantee",
    r"bare convolutions?|bare_step": "plain F.conv2d calls",
    r"manners|heard": "CLI conventions, signal handler",
    r"optimisers?|initialis\w+|normalis\w+|colours?\b|centred?|neighbour\w*|grey|behaviours?|metres?|labelled|randomis\w+"
    r"|minimis\w+|parametris\w+|recognis\w+|summaris\w+|serialis\w+|analys(e|ed|es)\b": "American spelling",
}
VALUES = {"found", "held", "kept", "one", "said", "told"}  # of names, those that say nothing
PATTERN = re.compile("|".join(f"(?P<w{index}>\\b(?:{word})\\b)" for index, word in enumerate(WORDS)))

# Where such a word is right: a path or a part of one, and the exact text that may stand in a line.
ALLOWED: dict[str, tuple[str, ...]] = {
    "tests/test_glossary.py": ("",),
    "tests/": ('"facts" / "golden"',),  # a folder of optional data
    "tests/reliability/readers/": ('"deviation"', "scale-disco pictures 1"),  # keys in files
    "src/scale_disco/tasks/bench/timing.py": ('"bare convolutions"',),  # a value of --json and --csv
    "src/scale_disco/tasks/quickstart/": ('"photographs"',),  # a key of report.json
    "tests/tasks/quickstart/": ('"photographs"',),
    "src/scale_disco/tasks/tracking/options.py": ("--pictures",),  # former name of --images
    "tests/tasks/tracking/commands/test_zoom.py": ("--pictures",),
    "tests/cli/test_conventions.py": ("--pictures",),
    # Keys of run.json, and of `disco table --json`.
    "src/scale_disco/cli/table.py": ('"deviation"',),
    "src/scale_disco/tasks/runs/": ('METADATA = "facts"', '"optimiser"'),
    "src/scale_disco/tasks/scene/training.py": ('"pictures"',),
    "src/scale_disco/tasks/stl10/training.py": ('"deviation"', "deviation=list"),
    "tests/tasks/": ('"facts"', '"deviation', '["pictures"]'),
    # Keys of state_dict.
    "src/scale_disco/tasks/tracking/networks.py": ("deviation",),
    "src/scale_disco/tasks/tracking/transfer.py": ("deviation",),
    "tests/tasks/tracking/test_networks.py": (".deviation",),
    # A key of state_dict, and an option value that older scripts give.
    "src/scale_disco/convert/": ("neighbours", '"centred"'),
    "tests/convert/": ("neighbours", '"centred"'),
    # The slope of a regression line.
    "docs/scene.md": ("slopes", "slope"),
    "results/scene.md": ("slope",),
    "results/compare.md": ("slope",),
    "benchmarks/compare.py": ("slopes", "slope"),
    # Former names.
    "CHANGELOG.md": (
        *(".Lesson`, `Exam`", ".Shown`", ".NoNumberError`", "Course`", "FrozenTracker`", "Footage`", "`photographs`"),
        *("`.pictures`", "scene.pictures.", "data.pictures.", "`pictures`", "--pictures", "docs/pictures.py"),
    ),
    # Names of files, options and values in commands that were measured.
    "results/tracking.md": ("--pictures MASTERS",),
    "benchmarks/tracking.py": ("--pictures",),
    "benchmarks/scene.py": ("normal.deviation",),
    "benchmarks/zoom_robustness.py": ('"centred"',),
    "results/zoom_robustness.md": ('downsampling="centred"', "| centred "),
    "src/scale_disco/tasks/stl10/folder.py": ("pictures 1",),  # format of cache files
    "tests/tasks/stl10/test_folder.py": ("pictures 1", "pictures 2"),
    # Slopes of regressions, keys and kinds in --json, buffers of checkpoints, and the key of a note.
    "src/scale_disco/tasks/scene/": (
        "slope",
        '"photograph"',
        '"pictures"',
        "self.deviation",
        "deviation: Tensor",
        '"deviation"',
        '"mark"',
    ),
    "tests/tasks/scene/": ("the_slope", "slope", '"photograph"', '"pictures"'),
}


def problems(path: Path) -> list[str]:
    """Lines with private words, each with what to write instead."""
    name = str(path.relative_to(ROOT))
    allowed = [text for place, texts in ALLOWED.items() if name.startswith(place) for text in texts]
    if "" in allowed:
        return []
    listed = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        for text in allowed:
            line = line.replace(text, "")
        for match in PATTERN.finditer(line):
            index = int((match.lastgroup or "w0")[1:])
            listed.append(f"{name}:{number}: {match.group()!r}: write {list(WORDS.values())[index]}")
    if path.suffix == ".py":
        listed += [f"{name}:{number}: the name {word!r}: say what the value is" for number, word in names_in(path)]
    return listed


def names_in(path: Path) -> list[tuple[int, str]]:
    """Variables and arguments whose names say nothing, with their lines."""
    listed = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VALUES:
            listed.append((node.lineno, node.id))
        elif isinstance(node, ast.arg) and node.arg in VALUES:
            listed.append((node.lineno, node.arg))
    return listed


def pages(roots: list[str]) -> list[Path]:
    names = subprocess.run(["git", "ls-files", *roots], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in names.splitlines() if name.endswith(SUFFIXES)]


@pytest.mark.parametrize("path", pages(list(READ)), ids=lambda path: str(path.relative_to(ROOT)))
def test_words_are_those_of_the_field(path):
    assert problems(path) == []


def test_the_check_can_fail(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "page.md").write_text("The slope is no number.\nThe gradient is fine.\n")
    assert len(problems(tmp_path / "page.md")) == 2
    (tmp_path / "module.py").write_text("found = [one for one in ()]\n")
    assert len(problems(tmp_path / "module.py")) == 2


if __name__ == "__main__":
    print("\n".join(line for path in pages(sys.argv[1:] or list(READ)) for line in problems(path)))
