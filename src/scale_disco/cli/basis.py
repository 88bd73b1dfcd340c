"""`disco basis`: solve a discrete basis; show, draw or save it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from ..basis import Basis, DiscreteBasis
from ..basis.solve import total_error
from ..files import check_writable
from ..tasks.equivariance.plots import plot_basis
from ..tasks.io.figures import check_figure, save_figure
from ..tasks.io.report import table
from ..tasks.io.samples import sample_images
from ..tasks.io.terminal import (
    Progress,
    add_command,
    add_operator,
    add_out,
    add_plot,
    add_scales,
    add_seed,
    chosen_scales,
    say,
    show,
    suggest,
)

_EXAMPLES = """\
  disco basis --kernel-size 3 --scales 1 2^0.5 2 --plot basis.png
  disco basis --kernel-size 7 --step "2^(1/3)" --count 4 --out basis.safetensors
  disco basis --load basis.safetensors
  disco basis --prior white --solver gradient --steps 300
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    basis = add_command(commands, "basis", run, "solve a discrete basis; show, draw or save it", _EXAMPLES)
    basis.add_argument("--kernel-size", type=int, metavar="K", help="side at the first scale (default 3)")
    add_scales(basis)
    basis.add_argument("--dims", type=int, default=2, metavar="N", help="spatial axes, 1 to 3 (default 2)")
    prior = basis.add_argument(
        "--prior",
        help='images to be optimal for: "image" (default), "white" (the paper), a neighbour correlation in [0, 1), '
        '"photos", "digits" or a folder of pictures',
    )
    suggest(prior, ["image", "white", "photos", "digits"], folders=True)
    basis.add_argument(
        "--support", type=int, nargs="+", metavar="SIDE", help="side of solved stencils, one or per scale"
    )
    solver = basis.add_argument("--solver", default="exact", help="exact (default) or gradient, the paper's descent")
    suggest(solver, ["exact", "gradient"])
    basis.add_argument("--steps", type=int, help="steps of the descent")
    add_seed(basis, "the descent")
    add_out(basis, "the basis as a safetensors file", "--save")
    basis.add_argument(
        "--load",
        type=Path,
        metavar="FILE",
        help="show a saved basis instead of solving one; its error for --prior, if given",
    )
    add_operator(basis)
    add_plot(basis, "the stencils")


def run(options: argparse.Namespace) -> None:
    """Solve or load, then print, save and draw."""
    if options.out:
        check_writable(options.out)
    if options.plot:
        check_figure(options.plot)
    with Progress("solving") as progress:
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
    cells = [["-" if value is None else f"{value:.4g}" for value in row.values()] for row in rows]
    summary = (
        "error unknown: the images it was solved for are not in the file, give --prior"
        if total is None
        else f"predicted equivariance error {total:.4g} (Eq. 14, all ratios)"
    )
    show(
        options,
        {"spec": basis.spec, "scales": rows, "taps": basis.taps, "error": total},
        f"{table(list(rows[0]), cells)}\n{basis.num_functions} functions, {basis.taps} taps in all, {summary}",
    )
    if options.out:
        basis.save(options.out)
        say(f"saved {options.out}")
    if options.plot:
        save_figure(plot_basis(basis), options.plot)
        say(f"drawn {options.plot}")


def _solve(options: argparse.Namespace, progress: Callable[[int, int], None]) -> DiscreteBasis:
    if options.plot and options.dims == 3:
        raise ValueError("--plot draws bases of 1 or 2 spatial axes, got --dims 3")
    support = options.support if options.support is None or len(options.support) > 1 else options.support[0]
    return DiscreteBasis(
        3 if options.kernel_size is None else options.kernel_size,
        chosen_scales(options),
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
