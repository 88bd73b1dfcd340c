"""`disco basis`: solve a discrete basis; print, plot or save it."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from ..basis import Basis, DiscreteBasis
from ..basis.solve import total_error
from ..tasks.equivariance.plots import plot_basis
from ..tasks.io import terminal
from ..tasks.io.report import table
from ..tasks.io.samples import sample_images

_EXAMPLES = """\
  disco basis --kernel-size 3 --scales 1 2^0.5 2 --plot basis.png
  disco basis --kernel-size 7 --step "2^(1/3)" --count 4 --out basis.safetensors
  disco basis --load basis.safetensors
  disco basis --prior white --solver gradient --steps 300
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    basis = terminal.add_command(commands, "basis", run, "solve a discrete basis; print, plot or save it", _EXAMPLES)
    basis.add_argument("--kernel-size", type=int, metavar="K", help="kernel size at the first scale (default 3)")
    terminal.add_scales(basis)
    basis.add_argument("--dims", type=int, default=2, metavar="N", help="spatial dimensions, 1 to 3 (default 2)")
    prior = basis.add_argument(
        "--prior",
        help='images that the basis is optimal for: "image", "white" (white noise, as in the paper), a correlation of '
        'neighboring pixels in [0, 1), "photos", "digits" or a folder of images (default image)',
    )
    terminal.suggest(prior, ["image", "white", "photos", "digits"], folders=True)
    basis.add_argument(
        "--support", type=int, nargs="+", metavar="SIDE", help="size of the solved stencils in taps, one or per scale"
    )
    solver = basis.add_argument(
        "--solver", default="exact", help="exact, or gradient: gradient descent as in the paper (default exact)"
    )
    terminal.suggest(solver, ["exact", "gradient"])
    basis.add_argument("--steps", type=int, help="number of gradient descent steps")
    terminal.add_seed(basis, "gradient descent")
    terminal.add_out(basis, "the basis to a safetensors file", "--save")
    basis.add_argument(
        "--load",
        type=Path,
        metavar="FILE",
        help="load a basis instead of solving one; --prior sets the images of its error",
    )
    terminal.add_operator(basis)
    terminal.add_plot(basis, "the stencils")


def run(options: argparse.Namespace) -> None:
    """Solve or load a basis, then print, save and plot it."""
    terminal.check_outputs(options)
    with terminal.Progress("solving") as progress:
        if options.load:
            for name in ("kernel_size", "scales", "step", "count", "support", "steps"):
                if getattr(options, name) is not None:
                    raise ValueError(f"--{name.replace('_', '-')} cannot be combined with --load")
            basis: Basis = Basis.load(options.load)
        else:
            basis = _solve(options, progress)
        # The images of the prior are not in the file, so the error for them is unknown.
        unknown = options.load and options.prior is None and str(basis.spec.get("prior")).startswith("images ")
        prior = _prior(options.prior) if options.load and options.prior is not None else None
        pairs = None if unknown else basis.pair_errors(prior=prior)
    rows: list[dict[str, float | None]] = []
    for k, (scale, stencil) in enumerate(zip(basis.scales, basis.stencils, strict=True)):
        norms = [pair_norms for pair, pair_norms in (pairs or {}).items() if k in pair]
        error = sum(norm[0] for norm in norms) / sum(norm[1] for norm in norms) if norms else 0.0
        row = {"scale": scale, "side": stencil.side, "dilation": stencil.dilation, "taps": stencil.taps}
        rows.append({**row, "reach": sum(stencil.reach) + 1, "error": None if pairs is None else error})
    total = None if pairs is None else total_error(basis.scales, pairs)
    cells = [["-" if value is None else f"{value:.4g}" for value in row.values()] for row in rows]
    summary = (
        "equivariance error not available: the file does not contain the images of its prior; pass --prior"
        if total is None
        else f"predicted equivariance error {total:.4g} (Eq. 14, all pairs of scales)"
    )
    terminal.show(
        options,
        {"spec": basis.spec, "scales": rows, "taps": basis.taps, "error": total},
        f"{table(list(rows[0]), cells)}\n{basis.num_functions} functions, {basis.taps} taps in total, {summary}",
    )
    if options.out:
        basis.save(options.out)
        terminal.say(f"saved {options.out}")
    terminal.write_plot(options, lambda: plot_basis(basis))


def _solve(options: argparse.Namespace, progress: Callable[[int, int], None]) -> DiscreteBasis:
    if options.plot and options.dims == 3:
        raise ValueError("--plot draws bases of 1 or 2 spatial dimensions, got --dims 3")
    support = options.support if options.support is None or len(options.support) > 1 else options.support[0]
    return DiscreteBasis(
        3 if options.kernel_size is None else options.kernel_size,
        terminal.chosen_scales(options),
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


def _prior(text: str) -> str | float | Tensor:
    if text in ("white", "image"):
        return text
    try:
        return float(text)
    except ValueError:
        return sample_images(text).images
