"""`disco basis`: solve a discrete basis; print, plot or save it."""

from torch import Tensor

from ..basis import Basis, DiscreteBasis
from ..basis.solve import total_error
from ..equivariance import basis_error
from ..tasks.equivariance.plots import plot_basis
from ..tasks.io import terminal
from ..tasks.io.progress import Progress
from ..tasks.io.report import table
from ..tasks.io.samples import photos, sample_images
from .options import BasisOptions

_MAX_RATIO = 8  # of scales measured on photos of 160 pixels


def run(options: BasisOptions) -> None:
    """Solve or load a basis, then print, save and plot it."""
    terminal.check_outputs(options.out, options.plot)
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
        measured = _measure(basis)
    rows: list[dict[str, float | None]] = []
    for k, (scale, stencil) in enumerate(zip(basis.scales, basis.stencils, strict=True)):
        norms = [pair_norms for pair, pair_norms in (pairs or {}).items() if k in pair]
        error = sum(norm[0] for norm in norms) / sum(norm[1] for norm in norms) if norms else 0.0
        row = {"scale": scale, "side": stencil.side, "dilation": stencil.dilation, "taps": stencil.taps}
        rows.append({**row, "reach": sum(stencil.reach) + 1, "error": None if pairs is None else error})
    total = None if pairs is None else total_error(basis.scales, pairs)
    cells = [["-" if value is None else f"{value:.4g}" for value in row.values()] for row in rows]
    header = [*list(rows[0])[:-1], "predicted error"]
    summary = (
        "predicted equivariance error not available: the file does not contain the images of its prior; pass --prior"
        if total is None
        else f"predicted equivariance error {total:.4g} (Eq. 14 for images of the prior)"
    )
    if measured is not None:
        summary += f"\nmeasured equivariance error {measured:.4g} (Eq. 14 on the bundled photos)"
    document = {"spec": basis.spec, "scales": rows, "taps": basis.taps, "error": total, "measured error": measured}
    size = f"{basis.num_functions} functions, {basis.taps} taps in total"
    terminal.show(options, document, f"{table(header, cells)}\n{size}, {summary}")
    if options.out:
        basis.save(options.out)
        terminal.say(f"saved {options.out}")
    terminal.write_plot(options.plot, lambda: plot_basis(basis))


def _solve(options: BasisOptions, progress: Progress) -> DiscreteBasis:
    if options.plot and options.dims == 3:
        raise ValueError("--plot draws bases of 1 or 2 spatial dimensions, got --dims 3")
    support = options.support[0] if options.support and len(options.support) == 1 else options.support
    return DiscreteBasis(
        3 if options.kernel_size is None else options.kernel_size,
        terminal.chosen_scales(options),
        prior="image" if options.prior is None else _prior(options.prior),
        support=support,
        spatial_dims=options.dims,
        progress=progress,
        **{name: getattr(options, name) for name in ("mode", "antialias", "solver", "steps", "seed")},
    )


def _measure(basis: Basis) -> float | None:
    """Return Eq. 14 on the bundled photos; None for a basis they do not suit."""
    scales, images = basis.scales, photos()
    largest = max(sum(stencil.reach) for stencil in basis.stencils)
    small = scales.ratio(len(scales) - 1) > _MAX_RATIO or largest > images.shape[-1] / 2
    if basis.spatial_dims != 2 or len(scales) < 2 or small:
        return None
    operator = {name: basis.spec[name] for name in ("mode", "antialias") if name in basis.spec}
    return basis_error(basis, images, channels=8, **operator)


def _prior(text: str) -> str | float | Tensor:
    if text in ("white", "image"):
        return text
    try:
        return float(text)
    except ValueError:
        return sample_images(text).images
