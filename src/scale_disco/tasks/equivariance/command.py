"""`disco equivariance`: the equivariance error of all bases, measured on the same images and predicted."""

from pathlib import Path
from typing import Any

import torch

from ...basis import Basis, hermite_mixing_preset
from ...basis.prior import IMAGE_CORRELATION
from ...basis.solve import total_error
from ...equivariance import basis_error
from ...files import plain, read_bytes, reason
from ...scales import Scales
from ..io import terminal
from ..io.arrays import parse_npz
from ..io.progress import part_of
from ..io.report import table
from ..io.samples import sample_images
from .bases import SETTINGS, compared_bases
from .options import EquivarianceOptions
from .plots import plot_errors

_LARGEST = 1 << 26  # bytes of a basis file
_SAME_SCALE = 0.01  # tolerance: the authors round their scales, 1.41 for sqrt 2


def run(options: EquivarianceOptions) -> None:
    """Measure, print and draw."""
    terminal.check_outputs(options.out, options.plot)
    device = terminal.chosen_device(options.device)
    scales = SETTINGS[options.setting]
    operator: dict[str, Any] = {"mode": options.mode, "antialias": options.antialias}
    errors: dict[str, float] = {}
    predicted: dict[str, float] = {}
    with terminal.Progress("measuring") as progress:
        bases = compared_bases(options.setting, **operator)
        for path in options.also:
            name = path.stem if path.stem not in bases else str(path)
            bases[name] = _load(path, scales, options.setting)
        images, border = sample_images(options.images, count=options.limit, seed=options.seed)
        border = border if options.border is None else options.border
        images = images.to(device)
        settings: dict[str, Any] = {"border": border, "channels": options.channels, "seed": options.seed, **operator}
        for number, (name, basis) in enumerate(bases.items()):
            part = part_of(progress, number, len(bases))
            errors[name] = basis_error(basis, images, scales=scales, progress=part, **settings)
            predicted[name] = total_error(scales, basis.pair_errors(prior="image", scales=scales, **operator))
    settings |= {"setting": options.setting, "images": str(options.images), "count": len(images)}
    taps = {name: basis.taps for name, basis in bases.items()}
    largest = max(errors.values()) or 1.0
    rows = [[name, str(taps[name]), f"{errors[name]:.4f}", f"{predicted[name]:.4f}"] for name in bases]
    bars = [("#" * round(40 * errors[name] / largest)).ljust(40) for name in bases]
    about = (
        f"measured: Eq. 14 of a lifting convolution, {options.channels} random kernels, {len(images)} images "
        f"({options.images}), scales {scales}, {options.mode} rescaling, border {border}; "
        "predicted: its expectation over all kernels and the images of the default prior, "
        f"noise whose neighboring pixels correlate by {IMAGE_CORRELATION}"
    )
    header = ["basis", "taps", "measured", "predicted"]
    chart = table([*header, ""], [[*row, bar] for row, bar in zip(rows, bars, strict=True)])
    document = {"settings": settings, "errors": errors, "predicted errors": predicted, "taps": taps}
    terminal.show(options, document, f"{chart}\n{about}")
    text = f"{about}.\n\n{table(header, rows, markdown=True)}"
    terminal.write_report(options.out, "Equivariance error", text, document, command=options.call)
    title = f"{options.setting} setting on {len(images)} images ({Path(str(options.images)).name})"
    by_basis = {name: {options.images: error} for name, error in errors.items()}
    terminal.write_plot(options.plot, lambda: plot_errors(by_basis, taps, title))


def _load(path: Path, scales: Scales, setting: str) -> Basis:
    """Load a basis for a setting; a pixel basis is mixed as the other bases are."""
    basis = _dense_file(path, scales) if path.suffix == ".npz" else Basis.load(path)
    if basis.spatial_dims != 2:
        raise ValueError(f"{path}: setting {setting} is 2-D, this basis {basis.spatial_dims}-D")
    own = basis.scales
    if len(own) != len(scales) or any(abs(own.ratio(k) / scales.ratio(k) - 1) > _SAME_SCALE for k in range(len(own))):
        raise ValueError(f"{path}: setting {setting} has {scales}, this basis {own}")
    mixing, count = hermite_mixing_preset(setting), basis.num_functions
    if not torch.equal(basis.stencils[0].functions.flatten(1), torch.eye(count, dtype=torch.float64)):
        return basis
    if len(mixing) != count:
        raise ValueError(f"{path}: setting {setting} has kernels of {len(mixing)} pixels, this basis {count}")
    return basis.mix(mixing).normalized()


def _dense_file(path: Path, scales: Scales) -> Basis:
    try:
        dense = torch.from_numpy(parse_npz(read_bytes(path, _LARGEST), _LARGEST)["basis"])
        return Basis.from_dense(dense, scales, kernel_size=max(1, round(dense.shape[0] ** 0.5)))
    except (FileNotFoundError, MemoryError):
        raise
    except Exception as error:  # a damaged zip file makes zipfile and zlib raise a dozen kinds
        what = plain(reason(error))
        raise ValueError(f"{path}: expected an .npz file with an array `basis` [F, S, K, K] ({what})") from error
