"""Check a wheel as a user gets it: its files, and its use in an empty environment.

`make release` calls it. The environment is created in a temporary folder, with the versions of PIP_CONSTRAINT; nothing
of the checkout can be imported there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

WEIGHTS = "scale_disco/models/weights/"
CARDS = ("mnist-cnn.json", "mnist-disco.json", "resnet50-stages.json")
FIRST_USE = Path(__file__).with_name("first_use.py").resolve()
USE = '''
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from torch import nn

import scale_disco
from scale_disco import DiscreteBasis, assert_equivariant, to_scale_equivariant
from scale_disco.nn import ScaleLift2d


def check(passed, text):
    if not passed:
        sys.exit(f"check_wheel: {text}")


place = Path(scale_disco.__file__)
check(place.is_relative_to(sys.prefix), f"expected scale_disco of {sys.prefix}, got {place}")
check(version("scale-disco") == scale_disco.__version__ == sys.argv[1], f"got version {scale_disco.__version__}")

torch.manual_seed(0)
scales, images = (1, 2, 4), torch.rand(2, 3, 64, 64)
lift = ScaleLift2d(3, 8, DiscreteBasis(3, scales))
check(lift(images).shape == (2, 8, 3, 64, 64), f"ScaleLift2d returned shape {tuple(lift(images).shape)}")
assert_equivariant(lift, images, scales, tolerance=1e-10)


def random_lift(x):
    """Unrelated kernels at every scale, which are not equivariant."""
    return torch.stack([nn.functional.conv2d(x, kernel, padding=1) for kernel in kernels], dim=2)


kernels = torch.randn(3, 8, 3, 3, 3)
try:
    assert_equivariant(random_lift, images, scales)
except AssertionError:
    pass
else:
    sys.exit("check_wheel: assert_equivariant accepted unrelated kernels")

cnn = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
net = to_scale_equivariant(cnn, scales=(1, 2**0.5, 2))
check(net(images).shape == (2, 5), f"the converted network returned shape {tuple(net(images).shape)}")
check(net.state_dict().keys() >= cnn.state_dict().keys(), "the converted network has other parameter names")
net(images).sum().backward()
print(f"scale-disco {scale_disco.__version__}, torch {torch.__version__}: layer, conversion, equivariance check passed")
'''


def check_files(wheel: Path) -> str:
    """Return the version of a wheel; raise ValueError if it lacks a file or has one too many."""
    name, _, rest = wheel.name.partition("-")
    version = rest.partition("-")[0]
    if wheel.suffix != ".whl" or not version:
        raise ValueError(f"{wheel.name}: expected the name of a wheel, NAME-VERSION-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
        check_weights(wheel.name, {file: archive.read(file) for file in files if file.startswith(WEIGHTS)})
    info = f"{name}-{version}.dist-info"
    missing = {
        "scale_disco/__init__.py",
        "scale_disco/py.typed",
        f"{info}/METADATA",
        f"{info}/licenses/LICENSE",
    } - files
    if missing:
        raise ValueError(f"{wheel.name}: expected {', '.join(sorted(missing))}, which it does not contain")
    others = {file.split("/")[0] for file in files} - {"scale_disco", info}
    if others:
        raise ValueError(f"{wheel.name}: expected scale_disco and {info} only, got {', '.join(sorted(others))}")
    return version


def check_weights(wheel: str, files: dict[str, bytes]) -> None:
    """Raise ValueError unless all weights are in a wheel, as their cards say, with the licenses of their sources."""
    for name in CARDS:
        if WEIGHTS + name not in files:
            raise ValueError(f"{wheel}: expected {WEIGHTS}{name}, which it does not contain")
        card = json.loads(files[WEIGHTS + name])
        for file in (card["file"], card["license_file"]):
            if not files.get(WEIGHTS + file):
                raise ValueError(f"{wheel}: expected {WEIGHTS}{file} of {name}, which it does not contain")
        actual = hashlib.sha256(files[WEIGHTS + card["file"]]).hexdigest()
        if actual != card["sha256"]:
            raise ValueError(f"{wheel}: {card['file']} has sha256 {actual}, its card {card['sha256']}")


def check_use(wheel: Path, version: str) -> None:
    """Install a wheel into an empty environment, and use it there: commands, a layer, a conversion, the weights."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    with tempfile.TemporaryDirectory(prefix="scale-disco-") as temporary:
        folder = Path(temporary)
        venv.create(folder / "env", with_pip=True)
        binaries = folder / "env" / "bin"
        for command in (
            [binaries / "python", "-m", "pip", "install", "--quiet", f"{wheel.resolve()}[plot,demo]"],
            [binaries / "disco", "quickstart", "--help"],
            [binaries / "python", "-I", "-c", USE, version],
            [binaries / "python", "-I", FIRST_USE, folder],
        ):
            print("+", *(str(word) if word is not USE else "..." for word in command), flush=True)
            subprocess.run(command, cwd=folder, env=environ, check=True)


def main() -> int:
    """Check the wheel that is named on the command line."""
    parser = argparse.ArgumentParser(description="check a wheel as a user gets it")
    parser.add_argument("wheel", type=Path)
    wheel = parser.parse_args().wheel
    if "PIP_CONSTRAINT" not in os.environ:
        sys.exit(
            "check_wheel: PIP_CONSTRAINT must name the file with the version of torch, got none: run `make release`"
        )
    try:
        check_use(wheel, check_files(wheel))
    except (OSError, ValueError, zipfile.BadZipFile, subprocess.CalledProcessError) as error:
        sys.exit(f"check_wheel: {str(error).splitlines()[0]}")
    print(f"{wheel} works in an empty environment")
    return 0


if __name__ == "__main__":
    sys.exit(main())
