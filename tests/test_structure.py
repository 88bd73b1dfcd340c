"""The structure of the project: imports, sizes, public names, links."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

import scale_disco
from scale_disco.models import _NAMES

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "scale_disco"

FILE_LINES, FOLDER_MODULES = 420, 12
PACKAGE_LINES, CORE_LINES = 23_400, 6_650  # the core is all but tasks and commands


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def lines_of(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def test_imports_point_one_way():
    """The layers of `pyproject.toml`; `lint-imports` names the back edge."""
    done = subprocess.run([Path(sys.executable).with_name("lint-imports")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_inside_the_package_are_relative(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
        assert not any(name.split(".")[0] == "scale_disco" for name in names)


def test_files_and_folders_stay_small():
    long = {str(path.relative_to(PACKAGE)) for path in modules() if lines_of([path]) > FILE_LINES}
    assert not long, f"more than {FILE_LINES} lines: {long}"
    for folder in {path.parent for path in modules()}:
        modules_of = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(modules_of) <= FOLDER_MODULES, f"{folder.name} has too many modules"


def test_package_and_core_stay_small():
    core = [path for path in modules() if path.relative_to(PACKAGE).parts[0] not in ("tasks", "cli")]
    assert lines_of(modules()) <= PACKAGE_LINES
    assert lines_of(core) <= CORE_LINES


def test_no_class_name_is_defined_twice():
    defined = Counter(
        node.name
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in defined.items() if count > 1] == []


def test_every_named_model_has_a_builder():
    """The registry names modules by string; each has builders of these names and no others."""
    for module, names in _NAMES.items():
        assert set(importlib.import_module(f"scale_disco.{module}").BUILDERS) == set(names)


def test_public_names():
    assert scale_disco.__all__ == sorted(scale_disco.__all__)
    assert set(scale_disco.__all__) == {
        "BSplineBasis", "Basis", "DiscreteBasis", "FourierBesselBasis", "HermiteBasis", "LogRadialBasis", "Scales",
        "Stencil", "assert_equivariant", "bake", "equivariance_error", "hermite_mixing", "hermite_mixing_preset",
        "resample", "to_scale_equivariant", "with_scales",
    }  # fmt: skip
    assert all(hasattr(scale_disco, name) for name in scale_disco.__all__)


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/**/*.md"), *PACKAGE.rglob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            file = (page.parent / target.split("#")[0]).resolve() if target.split("#")[0] else page
            assert file.exists(), f"{page.name}: {target} does not exist"
            assert file.is_relative_to(ROOT), f"{page.name}: {target} is outside the project"


def test_layers_need_no_extra():
    """Importing the package touches none of the optional dependencies."""
    extras = ["matplotlib", "PIL", "mlxtend", "scipy", "lightning", "yaml", "torchvision", "timm"]
    code = "import sys, scale_disco.nn, scale_disco.convert, scale_disco.cli\n"
    code += f"print([name for name in {extras} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"
