"""Readouts: from scale profiles [N, C, S] to apparent scale in octaves.

A scale profile is the mean response of every channel at every scale over a window. `Absolute` readouts map each profile
to a number by a small trained network. The others compare profiles: how far must one be shifted along the axis to match
the other?
"""

import hashlib
from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...scales import Scales

_HIDDEN = 256  # as in the paper
_EMBEDDED = 64
_DROPOUT = 0.3
_SUBSTEPS = 4  # shifts tried per step of the scales
_OVERLAP = 3  # minimum number of scales that two profiles are compared on
_ANCHORS = 256  # profiles of an image that all others are compared with
_CHUNK = 64  # profiles compared with them at a time
_SURE = 0.1  # fraction of the largest weight that makes a profile an anchor
_ALIKE = 0.1  # fraction of all pairs that are considered alike
_ITERATIONS = 10  # of iteratively reweighted least squares
_CLOSE = 0.1  # octaves below which a residual has full weight
_APART = 0.5  # mean octaves between votes at which sharpness is one half
_SHARPNESS = 20.0  # initial sharpness of the softmax over shifts
_EPS = 1e-6
_SILENT = 1e-24  # fraction of a typical response that counts as zero; keeps the gradient of the square root finite


class Reading(NamedTuple):
    """Octaves [N] up to a constant, and their sharpness along the scale axis, 0 to 1 [N]."""

    octaves: Tensor
    sharpness: Tensor


class Readout(nn.Module):
    """Base class: reads apparent scale from scale profiles, whose scales are a geometric sequence."""

    octaves: Tensor  # of the scales over the first
    typical: Tensor  # mean of every channel, by which profiles are divided; zeros: that of the current profiles
    origin: Tensor  # checksum of the fingerprint of the network it was trained for; zeros: any network

    def __init__(self, channels: int, scales: Scales) -> None:
        super().__init__()
        octaves = torch.tensor([scales.ratio(k) for k in range(len(scales))], dtype=torch.float64, device="cpu").log2()
        if len(scales) <= _OVERLAP or (octaves.diff().max() - octaves.diff().min()) > 1e-6:
            raise ValueError(f"Readout: expected {_OVERLAP + 1} or more geometric scales, got {scales!r}")
        self.channels, self.step = channels, float(octaves[1])
        self.register_buffer("octaves", octaves.float())
        self.register_buffer("typical", torch.zeros(channels))
        self.register_buffer("origin", torch.zeros(32, dtype=torch.uint8))

    def prepare(self, profiles: Tensor, fingerprint: str) -> None:
        """Store the mean of every channel over some profiles, and the fingerprint of their network."""
        self.typical.copy_(profiles.float().mean((0, 2)))
        self.origin.copy_(_checksum(fingerprint))

    def accepts(self, fingerprint: str) -> bool:
        """Return whether it is untrained, or was trained for the network with this fingerprint."""
        if self.origin.is_meta:  # without values, to check a file before it is loaded
            return True
        return not self.origin.any() or torch.equal(self.origin.cpu(), _checksum(fingerprint))

    @abstractmethod
    def compare(self, profiles: Tensor, others: Tensor) -> Tensor:
        """Return the apparent scale of profiles relative to others, in octaves [N]."""

    @abstractmethod
    def read(self, profiles: Tensor, weights: Tensor | None = None) -> Reading:
        """Read the apparent scale of the profiles of one image; those of larger weight [N] count more."""

    def normalize(self, profiles: Tensor) -> Tensor:
        """Divide channels by their typical response and compress strong responses by a square root."""
        typical = self.typical if self.typical.any() else profiles.mean((0, 2))
        return (profiles / (typical + _EPS)[:, None]).clamp_min(_SILENT).sqrt() - 1


class Absolute(Readout):
    """A readout of each profile by itself."""

    @abstractmethod
    def forward(self, profiles: Tensor) -> Tensor:
        """Octaves of profiles, [N, C, S] -> [N]."""

    def compare(self, profiles: Tensor, others: Tensor) -> Tensor:
        octaves, reference = self(torch.cat([profiles, others])).chunk(2)
        difference: Tensor = octaves - reference
        return difference

    def read(self, profiles: Tensor, weights: Tensor | None = None) -> Reading:
        return Reading(self(profiles), self.sharpness(profiles))

    def sharpness(self, profiles: Tensor) -> Tensor:
        """Return the relative range of responses over scales, averaged over channels."""
        low, high = profiles.amin(2), profiles.amax(2)
        return ((high - low) / (high + _EPS)).mean(1)


class Argmax(Absolute):
    """Estimates scale from the argmax over scales of every channel, as in the paper: [N, 512, 9] -> [N, 512] -> [N]."""

    def __init__(self, channels: int, scales: Scales) -> None:
        super().__init__(channels, scales)
        self.mlp = _mlp(channels)

    def forward(self, profiles: Tensor) -> Tensor:
        out: Tensor = self.mlp(self.positions(profiles))
        return out[:, 0]

    def positions(self, profiles: Tensor) -> Tensor:
        """Return the position of every channel on the axis, [N, C, S] -> [N, C]."""
        return profiles.argmax(2).to(profiles.dtype)


class Centroid(Argmax):
    """Estimates scale from the mean scale of every channel, weighted by its responses: like `Argmax`, but smooth."""

    def positions(self, profiles: Tensor) -> Tensor:
        weights = profiles / (profiles.sum(2, keepdim=True) + _EPS)
        middle = (weights * self.octaves).sum(2) - self.octaves.mean()
        return middle / self.step


class Profile(Absolute):
    """Estimates scale from the responses of all channels at all scales, or at the first few."""

    def __init__(self, channels: int, scales: Scales, seen: int | None = None) -> None:
        super().__init__(channels, scales)
        self.seen = len(scales) if seen is None else seen
        self.norm, self.mlp = nn.BatchNorm1d(channels), _mlp(channels * self.seen, _DROPOUT)

    def forward(self, profiles: Tensor) -> Tensor:
        out: Tensor = self.mlp(self.norm(self.normalize(profiles)[:, :, : self.seen]).flatten(1))
        return out[:, 0]


class FirstScale(Profile):
    """Estimates scale from the first scale alone, that of the original network: the baseline without a scale axis."""

    def __init__(self, channels: int, scales: Scales) -> None:
        super().__init__(channels, scales, seen=1)


class Equivariant(Absolute):
    """Shares weights along the axis: every scale votes for a size relative to itself, and votes are averaged.

    A profile shifted by one scale shifts the votes by one scale, and so the output, except at the ends.
    """

    def __init__(self, channels: int, scales: Scales) -> None:
        super().__init__(channels, scales)
        self.norm = nn.BatchNorm1d(channels)
        self.hidden = nn.Sequential(nn.Dropout(_DROPOUT), nn.Conv1d(channels, _HIDDEN, 1), nn.ReLU())
        self.vote = nn.Conv1d(_HIDDEN, 2, 1)

    def votes(self, profiles: Tensor) -> tuple[Tensor, Tensor]:
        """Return the octaves that every scale votes for and the weights of votes, [N, S] each."""
        vote, logits = self.vote(self.hidden(self.norm(self.normalize(profiles)))).unbind(1)
        return self.octaves + vote, logits.softmax(1)

    def forward(self, profiles: Tensor) -> Tensor:
        votes, weights = self.votes(profiles)
        return (votes * weights).sum(1)

    def sharpness(self, profiles: Tensor) -> Tensor:
        """Return 1 where all scales agree, 1/2 where they differ by an octave."""
        votes, weights = self.votes(profiles)
        middle = (votes * weights).sum(1, keepdim=True)
        return 1 / (1 + (weights * (votes - middle).square()).sum(1))


class Shift(Readout):
    """Estimates scale from the shift along the scale axis that best aligns two profiles. Needs no training.

    Every profile of an image is compared with many others, each of which votes for a relative scale. Similar profiles
    have more weight, so that road is compared with road and trees with trees. A constant offset of all channels and
    scales, as a brighter image causes, is ignored.
    """

    shifts: Tensor  # [M], in steps of the scales
    reads: Tensor  # [M, S, S], interpolation weights of a shifted profile; rows out of range are zero

    def __init__(self, channels: int, scales: Scales) -> None:
        super().__init__(channels, scales)
        count = len(scales)
        shifts = torch.arange(-(count - _OVERLAP) * _SUBSTEPS, (count - _OVERLAP) * _SUBSTEPS + 1) / _SUBSTEPS
        places = torch.arange(count) - shifts[:, None]
        inside = (places >= 0) & (places <= count - 1)
        hats = (1 - (places[:, :, None] - torch.arange(count)).abs()).clamp_min(0)
        self.register_buffer("shifts", shifts, persistent=False)
        self.register_buffer("reads", hats * inside[:, :, None], persistent=False)

    def embed(self, profiles: Tensor) -> Tensor:
        """Return the features that are compared, [N, C, S] -> [N, C', S]."""
        return self.normalize(profiles)

    def best_shift(self, costs: Tensor) -> Tensor:
        """Return the shift of least cost in steps, refined by a parabola, [..., M] -> [...]."""
        best = costs.argmin(-1, keepdim=True).clamp(1, costs.shape[-1] - 2)
        before, at, after = (costs.gather(-1, best + off) for off in (-1, 0, 1))
        off = (before - after) / (2 * (before - 2 * at + after)).clamp_min(_EPS)
        return (self.shifts[best] + off.clamp(-0.5, 0.5) / _SUBSTEPS)[..., 0]

    def compare(self, profiles: Tensor, others: Tensor) -> Tensor:
        x, y = self.embed(torch.cat([profiles, others])).chunk(2)
        cross = torch.einsum("ncs,ncl->nsl", x, y)
        forward = self.best_shift(self._costs(_Sums.of(x), _Sums.of(y), cross))
        backward = self.best_shift(self._costs(_Sums.of(y), _Sums.of(x), cross.mT))
        return self.step * (forward - backward) / 2

    def read(self, profiles: Tensor, weights: Tensor | None = None) -> Reading:
        x = self.embed(profiles)
        if len(x) == 0:
            return Reading(x.sum((1, 2)), x.sum((1, 2)))
        weights = x.new_ones(len(x)) if weights is None else weights.to(x)
        anchors = _spread(weights)
        octaves, costs = self._against(x[anchors], x[anchors])
        octaves = (octaves - octaves.T) / 2
        mutual = costs + costs.T
        others = ~torch.eye(len(mutual), dtype=torch.bool, device=mutual.device)
        alike = _EPS + (torch.quantile(mutual[others], _ALIKE) if len(mutual) > 1 else 0.0)
        trust = (-mutual / alike).exp() * weights[anchors] * weights[anchors, None]
        solved = joint_octaves(octaves, trust.fill_diagonal_(0))
        votes, costs = self._against(x, x[anchors])
        trust = (-2 * costs / alike).exp() * weights[anchors] + _EPS
        return Reading(*_agreed(votes + solved, trust))

    def _against(self, x: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
        """Return octaves of each relative to each anchor, and the cost that remains after the shift: [N, A] each."""
        octaves, least, sums = [], [], _Sums.of(anchors)
        for chunk in torch.split(x, _CHUNK):
            cross = torch.einsum("ncs,acl->nasl", chunk, anchors)
            costs = self._costs(_Sums(*(part[:, None] for part in _Sums.of(chunk))), sums, cross)
            octaves.append(self.step * self.best_shift(costs))
            least.append(costs.amin(-1))
        return torch.cat(octaves), torch.cat(least)

    def _costs(self, x: "_Sums", y: "_Sums", cross: Tensor) -> Tensor:
        """Return the variance of the difference of profiles for every shift, [..., M].

        It is computed from products of scales of both, [..., S, S], so that shifts cost almost nothing.
        """
        inside = self.reads.sum(2).T  # [S, M], 0 or 1
        both = torch.einsum("msl,msk->mlk", self.reads, self.reads)
        squares = x.squares.diagonal(dim1=-2, dim2=-1) @ inside
        squares = squares - 2 * cross.flatten(-2) @ self.reads.flatten(1).T + y.squares.flatten(-2) @ both.flatten(1).T
        sums = x.values @ inside - y.values @ self.reads.sum(1).T
        count = x.channels * inside.sum(0)
        return (squares / count - (sums / count).square()).clamp_min(0)


class _Sums(NamedTuple):
    """Sums over channels of values [..., S] and of products of two scales [..., S, S], and the number of channels."""

    values: Tensor
    squares: Tensor
    channels: Tensor

    @classmethod
    def of(cls, profiles: Tensor) -> "_Sums":
        products = torch.einsum("ncs,nck->nsk", profiles, profiles)
        return cls(profiles.sum(1), products, products.new_full((len(profiles), 1), profiles.shape[1]))


def _spread(weights: Tensor) -> Tensor:
    """Return indices of anchors, spread evenly over all profiles with enough weight, or over all if there are none."""
    candidates = (weights > _SURE * weights.max()).nonzero()[:, 0]
    candidates = candidates if len(candidates) > 1 else torch.arange(len(weights), device=weights.device)
    places = torch.linspace(0, len(candidates) - 1, min(_ANCHORS, len(candidates)))
    return candidates[places.round().long()]


def joint_octaves(octaves: Tensor, trust: Tensor) -> Tensor:
    """Return octaves [A], of mean zero, whose differences fit the given ones [A, A] robustly."""
    exact, wanted = trust.cpu().double(), octaves.cpu()
    weights, identity = exact, torch.eye(len(exact), dtype=torch.float64)
    solution = torch.zeros_like(weights[0])
    damping = _EPS * weights.sum(1).max().clamp_min(_EPS)
    for _ in range(_ITERATIONS):
        laplacian = weights.sum(1).diag() - weights
        solution = torch.linalg.solve(laplacian + damping * identity, (weights * wanted).sum(1))
        weights = exact / (solution[:, None] - solution - wanted).abs().clamp_min(_CLOSE)
    return (solution - solution.mean()).to(octaves)


def _agreed(votes: Tensor, trust: Tensor) -> tuple[Tensor, Tensor]:
    """Return a robust mean of votes [N, A], weighted by trust, and how well they agree, 0 to 1: [N] each."""
    mean = (votes * trust).sum(1) / trust.sum(1)
    for _ in range(_ITERATIONS):
        weights = trust / (votes - mean[:, None]).abs().clamp_min(_CLOSE)
        mean = (votes * weights).sum(1) / weights.sum(1)
    apart = ((votes - mean[:, None]).abs() * trust).sum(1) / trust.sum(1)
    return mean, 1 / (1 + (apart / _APART).square())


class Matched(Shift):
    """Like `Shift`, but learns which mixtures of channels to compare, the same at all scales."""

    def __init__(self, channels: int, scales: Scales) -> None:
        super().__init__(channels, scales)
        self.norm = nn.BatchNorm1d(channels)
        self.mix = nn.Conv1d(channels, _EMBEDDED, 1, bias=False)
        self.sharp = nn.Parameter(torch.tensor(_SHARPNESS).log())

    def embed(self, profiles: Tensor) -> Tensor:
        mixed: Tensor = self.mix(self.norm(self.normalize(profiles)))
        return mixed

    def best_shift(self, costs: Tensor) -> Tensor:
        """Return the mean of shifts, weighted by a softmax of negative costs."""
        typical = costs.mean(-1, keepdim=True) + _EPS
        return (-self.sharp.exp() * costs / typical).softmax(-1) @ self.shifts


def _checksum(fingerprint: str) -> Tensor:
    return torch.tensor(list(hashlib.sha256(fingerprint.encode()).digest()), dtype=torch.uint8)


def _mlp(inputs: int, dropout: float = 0.0) -> nn.Sequential:
    """Return the paper's network, with one hidden layer of 256."""
    return nn.Sequential(
        nn.Dropout(dropout), nn.Linear(inputs, _HIDDEN), nn.ReLU(), nn.Dropout(dropout), nn.Linear(_HIDDEN, 1)
    )


READOUTS: dict[str, type[Readout]] = {
    "argmax": Argmax,
    "centroid": Centroid,
    "profile": Profile,
    "equivariant": Equivariant,
    "matched": Matched,
    "shift": Shift,
    "first-scale": FirstScale,
}
