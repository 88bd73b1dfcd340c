"""The shape of the house: which room may use which, what is public, and that links lead somewhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import scale_disco

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "scale_disco"

# Data flows down this list; a module imports only from lines above its own.
ROOMS = [
    {"scales", "files", "reading", "basis.cpu"},
    {"resample"},
    {"basis.prior", "basis.power"},
    {"basis.solve"},
    {"basis.stencil"},
    {"basis.descent", "basis.sampled"},
    {"basis.discrete", "basis.hermite", "basis.bspline", "basis.fourier_bessel", "basis.log_radial"},
    {"basis.paper"},
    {"basis"},
    {"fold", "spectral", "winograd", "data.mnist", "data.images", "data.otb_lists", "data.photo"},
    {"functional", "data.mnist_scale", "data.pictures", "data.stl10", "data.folder", "data.otb"},
    {"data.zoom_masters", "data.zoom_motion"},
    {"data.zoom"},
    {"data"},
    {"equivariance", "nn.fixed", "nn.norm", "nn.project"},
    {"nn.conv", "nn.folded", "nn.pool"},
    {"nn"},
    {"export"},
    {"convert.watch"},
    {"convert.network"},
    {"convert.trial"},
    {"convert"},
    {"models.dss", "models.sevf", "models.sicnn", "models.ss_cnn"},
    {"models.si_convnet"},
    {"models.mnist", "models.stl10", "models.weights", "models.readout"},
    {"models.resnet", "models.digits", "models.transfer"},
    {"models.siamfc", "models.scale_estimator"},
    {"models"},
    {""},  # scale_disco itself: the public names
    {
        "hub",
        "report",
        "plots",
        "page",
        "bench",
        "training.recipe",
        "training.augment",
        "training.batches",
        "training.equivariance",
        "tracking.crop",
        "scene.pictures",
    },
    {"scene.planes", "scene.field", "scene.classical", "scene.depth"},
    {"scene.contrast"},
    {"scene.evaluate"},
    {"scene"},
    {"tracking.tracker", "tracking.video", "tracking.pairs"},
    {"tracking.compare"},
    {"tracking.evaluate"},
    {"tracking"},
    {"training.settings"},
    {"training.mnist_scale", "training.stl10", "training.tracker", "training.scene"},
    {"training"},
    {"training.record"},
    {"training.classifier", "training.evaluate"},
    {"training.matcher", "training.contrast"},
    {"training.run", "training.tables.outcome"},
    {"training.tables.group"},
    {"training.tables.mnist_scale", "training.tables.stl10"},
    {"training.tables"},
    {"quickstart.story", "quickstart.workers"},
    {"quickstart"},
    {"cli.terminal"},
    {"cli.trackers", "cli.window", "cli.fields", "cli.scene_test"},
    {
        "cli.basis",
        "cli.equivariance",
        "cli.bench",
        "cli.data",
        "cli.train",
        "cli.test",
        "cli.table",
        "cli.completion",
        "cli.quickstart",
        "cli.otb",
        "cli.track",
        "cli.scene",
    },
    {"cli"},
    {"__main__"},
]


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports_of(path: Path) -> set[str]:
    """Modules of the package that a file imports, wherever in the file."""
    module = name_of(path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    known = {name_of(other) for other in PACKAGE.rglob("*.py")}
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert not any(alias.name.startswith("scale_disco") for alias in node.names), (
                f"{path}: relative imports only"
            )
        if isinstance(node, ast.ImportFrom):
            assert not (node.level == 0 and (node.module or "").startswith("scale_disco")), (
                f"{path}: relative imports only"
            )
            if node.level:
                above = package.split(".") if package else []
                base = ".".join(above[: len(above) - node.level + 1] + ([node.module] if node.module else []))
                for alias in node.names:
                    deeper = f"{base}.{alias.name}".strip(".")
                    found.add(deeper if deeper in known else base)
    return found


def test_imports_point_one_way():
    rank = {module: index for index, room in enumerate(ROOMS) for module in room}
    for path in PACKAGE.rglob("*.py"):
        module = name_of(path)
        assert module in rank, f"{module} has no place in ROOMS: decide what it may import"
        for used in imports_of(path):
            assert rank[used] < rank[module], f"{module} imports {used}, against the flow"


def test_public_names():
    assert scale_disco.__all__ == sorted(scale_disco.__all__)
    assert set(scale_disco.__all__) == {
        "BSplineBasis", "Basis", "DiscreteBasis", "FourierBesselBasis", "HermiteBasis", "LogRadialBasis", "Scales",
        "Stencil", "assert_equivariant", "bake", "equivariance_error", "hermite_mixing", "hermite_mixing_preset",
        "resample", "to_scale_equivariant",
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
    import subprocess
    import sys

    extras = ["matplotlib", "PIL", "mlxtend", "scipy", "lightning", "yaml", "rich", "torchvision", "timm"]
    code = f"import sys, scale_disco, scale_disco.cli; print([m for m in {extras} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"
