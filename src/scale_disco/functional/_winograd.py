"""3x3 and 5x5 convolutions on the CPU by Winograd's minimal filtering (Lavin and Gray 2016), in tiles.

A convolution is a product of polynomials, which can be multiplied point by point. Kernels, and tiles of the image that
yield 4x4 output pixels, are evaluated at as many points as a tile has pixels; channels mix at each point separately.
That takes 2.25 multiplications per pixel for 9 taps and 4 for 25. With few channels evaluation costs more.
"""

import math
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

_OUT = 4  # side of the output of a tile
# Per kernel side: evaluation points with small rounding errors. With infinity there are as many as a tile's side.
_POINTS = {3: (0, 2 / 3, -2 / 3, 3 / 2, -3 / 2), 5: (0, 1 / 2, -1 / 2, 1, -1, 2, -2)}
_TILES = 128  # per step, to stay in the cache
_KERNELS = 1 << 22  # values of evaluated kernels per step
_PIXELS = 1 << 10  # minimum, in all images together
_FILLED = 1.5  # maximum ratio of pixels in whole tiles to pixels in images
_WEIGHTS = 1 << 17  # minimum in a kernel, such as 128 to 128 channels of 3x3 taps; twice that without gradients


def is_faster(x: Tensor, kernel: Tensor, dilation: int = 1) -> bool:
    """Return whether `correlate` is faster than `F.conv2d`, for [B, C, H, W] and a kernel [C', C, side, side]."""
    least = _WEIGHTS if torch.is_grad_enabled() else 2 * _WEIGHTS  # the backward pass gains more
    return (
        kernel.shape[-2] == kernel.shape[-1]
        and kernel.shape[-1] in _POINTS
        and kernel.numel() >= least
        and len(x) * math.prod(x.shape[2:]) >= _PIXELS
        and math.prod(_spanned(x, dilation)) <= _FILLED * math.prod(x.shape[2:])
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    )


def correlate(x: Tensor, kernel: Tensor, dilation: int = 1) -> Tensor:
    """Compute `F.conv2d(x, kernel, padding=dilation * (side // 2), dilation=dilation)` for sides 3 and 5.

    The result is channels_last.
    """
    y: Tensor = _Correlate.apply(x, kernel, dilation)  # type: ignore[no-untyped-call]
    return y


class _Correlate(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, kernel: Tensor, dilation: int) -> Tensor:
        into, of, out = _matrices(kernel, x)
        grid = _Grid(x, kernel, dilation)
        tiles, y = grid.tiles(x), x.new_empty(len(x), *grid.spanned, len(kernel))
        blocks = grid.blocks(y)
        for outputs in grid.outputs:
            points = _evaluate(of, kernel[outputs].flatten(2).movedim(2, 0))
            for part in grid.parts:
                mixed = _evaluate(into, tiles[part]) @ points.mT
                block = blocks[part][..., outputs]
                block.copy_((out.T @ mixed.flatten(1)).view(block.shape))
        return grid.cut(y, 0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        x, kernel, ctx.dilation = inputs
        ctx.save_for_backward(x, kernel)
        ctx.save_for_forward(x, kernel)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, kernel = ctx.saved_tensors
        if torch.is_grad_enabled():  # for second derivatives
            pads, steps = [ctx.dilation * (kernel.shape[-1] // 2)] * 2, [ctx.dilation] * 2
            x_grad, kernel_grad, _ = torch.ops.aten.convolution_backward(
                grad, x, kernel, None, [1, 1], pads, steps, False, [0, 0], 1, [*ctx.needs_input_grad[:2], False]
            )
            return x_grad, kernel_grad, None
        into, of, out = _matrices(kernel, x)
        grid = _Grid(x, kernel, ctx.dilation)
        tiles, grads = grid.tiles(x), grid.blocks(grid.framed(grad, grid.spanned, 0))
        x_grad, kernel_grad = x.new_zeros(len(x), *grid.framing, x.shape[1]), torch.empty_like(kernel)
        for outputs in grid.outputs:
            points = _evaluate(of, kernel[outputs].flatten(2).movedim(2, 0))
            points_grad = torch.empty_like(points)
            for number, part in enumerate(grid.parts):
                mixed_grad = _evaluate(out, grads[part][..., outputs])
                points_grad.baddbmm_(mixed_grad.mT, _evaluate(into, tiles[part]), beta=min(number, 1))
                grid.add(x_grad, part, into.T @ (mixed_grad @ points).flatten(1))
            kernel_grad[outputs] = (points_grad.flatten(1).T @ of).view_as(kernel_grad[outputs])
        return grid.cut(x_grad, grid.margin), kernel_grad, None

    @staticmethod
    def jvp(ctx: Any, x_change: Tensor | None, kernel_change: Tensor | None, _: None) -> Tensor:
        x, kernel = ctx.saved_tensors
        moved = _direct(x_change, kernel, ctx.dilation) if x_change is not None else torch.zeros(())
        return moved if kernel_change is None else moved + _direct(x, kernel_change, ctx.dilation)

    @staticmethod
    def vmap(info: Any, axes: tuple[int | None, ...], x: Tensor, kernel: Tensor, dilation: int) -> tuple[Tensor, int]:
        return torch.vmap(_direct, axes)(x, kernel, dilation), 0


def _direct(x: Tensor, kernel: Tensor, dilation: int) -> Tensor:
    return F.conv2d(x, kernel, padding=dilation * (kernel.shape[-1] // 2), dilation=dilation)


class _Grid:
    """The tiles of images: one per block of 4x4 pixels, overlapping the next blocks; dilated tiles interleave.

    Views of tiles and blocks are [side, side, B, rows, dilation, columns, dilation, C]; frames are zero-padded images
    [B, H, W, C].
    """

    def __init__(self, x: Tensor, kernel: Tensor, dilation: int) -> None:
        self.size, self.dilation, self.side = x.shape[2:], dilation, _OUT + kernel.shape[-1] - 1
        self.margin = dilation * (kernel.shape[-1] // 2)
        block, self.spanned = _OUT * dilation, _spanned(x, dilation)
        self.rows, self.columns = (side // block for side in self.spanned)
        self.framing = self.spanned[0] + block, self.spanned[1] + block  # with the overlap of the last tiles
        row = self.columns * dilation**2
        self.parts = [
            (slice(None), slice(None), images, rows)
            for images in _parts(len(x), _TILES // (self.rows * row))
            for rows in _parts(self.rows, _TILES // row)
        ]
        self.outputs = _parts(len(kernel), _KERNELS // (self.side**2 * x.shape[1]))

    def framed(self, x: Tensor, size: tuple[int, int], margin: int) -> Tensor:
        """Copy images [B, C, H, W] into frames."""
        frame = x.new_zeros(len(x), *size, x.shape[1])
        self.cut(frame, margin).copy_(x)
        return frame

    def cut(self, frame: Tensor, margin: int) -> Tensor:
        """Return the images of frames, as a view."""
        height, width = self.size
        return frame[:, margin : margin + height, margin : margin + width].permute(0, 3, 1, 2)

    def blocks(self, frame: Tensor) -> Tensor:
        batch, _, _, channels = frame.shape
        rows, columns = (side // (_OUT * self.dilation) for side in frame.shape[1:3])
        split = frame.view(batch, rows, _OUT, self.dilation, columns, _OUT, self.dilation, channels)
        return split.permute(2, 5, 0, 1, 3, 4, 6, 7)

    def tiles(self, x: Tensor) -> Tensor:
        blocks = self.blocks(self.framed(x, self.framing, self.margin))[:, :, :, :-1, :, :-1]
        return blocks.as_strided((self.side, self.side, *blocks.shape[2:]), blocks.stride())

    def add(self, frame: Tensor, part: tuple[slice, ...], tiles: Tensor) -> None:
        """Add overlapping tiles to frames."""
        blocks = self.blocks(frame)[part[:3]]
        tiles = tiles.view(self.side, self.side, blocks.shape[2], -1, self.dilation, self.columns, *blocks.shape[-2:])
        for (down, ys), (right, xs) in product(enumerate((slice(0, _OUT), slice(_OUT, None))), repeat=2):
            piece, top = tiles[ys, xs], part[3].start + down
            place = blocks[: len(piece), : piece.shape[1], :, top : top + piece.shape[3]]
            place[..., right : right + self.columns, :, :].add_(piece)


def _spanned(x: Tensor, dilation: int) -> tuple[int, int]:
    """Return the image size rounded up to whole blocks."""
    height, width = (_OUT * dilation * math.ceil(side / (_OUT * dilation)) for side in x.shape[2:])
    return height, width


def _parts(count: int, most: int) -> list[slice]:
    """Split range(count) into equal slices of at most `most`."""
    size = math.ceil(count / math.ceil(count / max(most, 1)))
    return [slice(start, start + size) for start in range(0, count, size)]


def _evaluate(matrix: Tensor, values: Tensor) -> Tensor:
    """Apply a matrix [P, N] to the first axes of values: [N, ..., C] -> [P, all others, C]."""
    return (matrix @ values.reshape(matrix.shape[1], -1)).view(len(matrix), -1, values.shape[-1])


def _matrices(kernel: Tensor, x: Tensor) -> list[Tensor]:
    return [torch.from_numpy(matrix).to(x) for matrix in _evaluations(kernel.shape[-1])]


@lru_cache
def _evaluations(taps: int) -> tuple[NDArray[np.float64], ...]:
    """Return matrices [points, pixels] over both axes: tiles to points, kernels to points, and (transposed) back."""

    def powers(count: int) -> Any:
        return np.vstack([np.vander(_POINTS[taps], count, increasing=True), np.eye(count)[-1]])

    # The coefficients of a product are its values times the inverse of `powers`; correlation is the adjoint of that.
    into, of, out = np.linalg.inv(powers(_OUT + taps - 1)).T, powers(taps), powers(_OUT)
    size = np.abs(into).max(1, keepdims=True)
    return tuple(np.kron(matrix, matrix) for matrix in (into / size, of * size, out))
