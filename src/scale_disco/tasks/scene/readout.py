"""What reads the scale axis: from profiles [N, C, S] to how large things look, in octaves.

A profile says how strongly every channel answers at every scale, on average over a window. The read-outs of the first
kind give a number for every profile alone, by a small network that learns: from where channels answer most (`argmax`,
the paper's), from the centroid of their answers, from the whole profile, from the first scale alone, or by weights
that are shared along the axis, so that a shifted profile shifts the answer (`equivariant`). Those of the second kind
compare profiles: how far must one be shifted along the axis to look like the other? That takes no training (`shift`),
or learns which mixtures of channels to compare (`matched`).
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...scales import Scales

_HIDDEN = 256  # as in the paper
_EMBEDDED = 64
_DROPPED = 0.3
_PARTS = 4  # shifts that are tried from a scale to the next
_COMMON = 3  # scales that two profiles must have in common
_ANCHORS = 256  # profiles of a picture that all others are compared with
_AT_ONCE = 64  # profiles that are compared with them at a time
_SURE = 0.1  # part of the largest weight that makes a profile one of them
_ALIKE = 0.1  # part of all pairs that are alike
_ROUNDS = 10  # in which what is far off counts less and less
_CLOSE = 0.1  # octaves below which it counts in full
_APART = 0.5  # octaves between votes that make an answer half as sharp
_SHARPNESS = 20.0  # of the softmax over shifts, to begin with
_LEAST = 1e-6
_SILENT = 1e-24  # part of a typical answer that is none, to one in single precision; the slope of its root is finite


class Reading(NamedTuple):
    """Octaves [N] up to a constant, and how clear they are along the scale axis, 0 to 1 [N]."""

    octaves: Tensor
    sharpness: Tensor


class Readout(nn.Module):
    """Tells from profiles how large things look.

    Args:
        channels: C of the profiles.
        scales: Those of the profiles; must grow by one factor.
    """

    octaves: Tensor  # of the scales over the first
    typical: Tensor  # mean of every channel, by which profiles are divided; zeros: that of the profiles at hand
    origin: Tensor  # checksum of the mark of the network whose profiles it learned from; zeros: of any

    def __init__(self, channels: int, scales: Scales) -> None:
        super().__init__()
        octaves = torch.tensor([scales.ratio(k) for k in range(len(scales))], dtype=torch.float64, device="cpu").log2()
        if len(scales) <= _COMMON or (octaves.diff().max() - octaves.diff().min()) > 1e-6:
            raise ValueError(f"Readout: scales must be {_COMMON + 1} or more that grow by one factor, got {scales!r}")
        self.channels, self.step = channels, float(octaves[1])
        self.register_buffer("octaves", octaves.float())
        self.register_buffer("typical", torch.zeros(channels))
        self.register_buffer("origin", torch.zeros(32, dtype=torch.uint8))

    def prepare(self, profiles: Tensor, mark: str) -> None:
        """Remember how strong channels are, from some profiles, and the mark of the network that these are of."""
        self.typical.copy_(profiles.float().mean((0, 2)))
        self.origin.copy_(_checksum(mark))

    def is_of(self, mark: str) -> bool:
        """Whether it learned from profiles of the network with this mark, or has not learned from any."""
        return not self.origin.any() or torch.equal(self.origin.cpu(), _checksum(mark))

    @abstractmethod
    def compare(self, profiles: Tensor, others: Tensor) -> Tensor:
        """By how many octaves things look larger in profiles than in others, [N]."""

    @abstractmethod
    def read(self, profiles: Tensor, weights: Tensor | None = None) -> Reading:
        """How large things look in profiles of one picture, the more as their weights [N] say."""

    def even(self, profiles: Tensor) -> Tensor:
        """Profiles with channels of about the same strength, and strong answers drawn together."""
        typical = self.typical if self.typical.any() else profiles.mean((0, 2))
        return (profiles / (typical + _LEAST)[:, None]).clamp_min(_SILENT).sqrt() - 1


class Absolute(Readout):
    """A read-out of every profile alone."""

    @abstractmethod
    def forward(self, profiles: Tensor) -> Tensor:
        """Octaves of profiles [N, C, S] -> [N]."""

    def compare(self, profiles: Tensor, others: Tensor) -> Tensor:
        one, other = self(torch.cat([profiles, others])).chunk(2)
        difference: Tensor = one - other
        return difference

    def read(self, profiles: Tensor, weights: Tensor | None = None) -> Reading:
        return Reading(self(profiles), self.sharpness(profiles))

    def sharpness(self, profiles: Tensor) -> Tensor:
        """How much of a profile is above its weakest scale, for a typical channel."""
        low, high = profiles.amin(2), profiles.amax(2)
        return ((high - low) / (high + _LEAST)).mean(1)


class Argmax(Absolute):
    """From the scale where every channel answers most, exactly as in the paper: [N, 512, 9] -> [N, 512] -> [N]."""

    def __init__(self, channels: int, scales: Scales) -> None:
        super().__init__(channels, scales)
        self.mlp = _mlp(channels)

    def forward(self, profiles: Tensor) -> Tensor:
        out: Tensor = self.mlp(profiles.argmax(2).to(profiles.dtype))
        return out[:, 0]


class Centroid(Absolute):
    """From the mean scale of every channel, weighted by its answers: like `Argmax`, but smooth."""

    def __init__(self, channels: int, scales: Scales) -> None:
        super().__init__(channels, scales)
        self.mlp = _mlp(channels)

    def forward(self, profiles: Tensor) -> Tensor:
        shares = profiles / (profiles.sum(2, keepdim=True) + _LEAST)
        middle = (shares * self.octaves).sum(2) - self.octaves.mean()
        out: Tensor = self.mlp(middle / self.step)
        return out[:, 0]


class Profile(Absolute):
    """From the answers of all channels at all scales."""

    def __init__(self, channels: int, scales: Scales, seen: int | None = None) -> None:
        super().__init__(channels, scales)
        self.seen = len(scales) if seen is None else seen
        self.norm, self.mlp = nn.BatchNorm1d(channels), _mlp(channels * self.seen, _DROPPED)

    def forward(self, profiles: Tensor) -> Tensor:
        out: Tensor = self.mlp(self.norm(self.even(profiles)[:, :, : self.seen]).flatten(1))
        return out[:, 0]


class FirstScale(Profile):
    """From the first scale alone, which is that of the ordinary network: the baseline without a scale axis."""

    def __init__(self, channels: int, scales: Scales) -> None:
        super().__init__(channels, scales, seen=1)


class Equivariant(Absolute):
    """By weights shared along the axis: every scale votes for a size as seen from it, and has a say in the mean.

    A profile that is shifted by a scale has its votes shifted by a scale, and so the answer, but for the ends.
    """

    def __init__(self, channels: int, scales: Scales) -> None:
        super().__init__(channels, scales)
        self.norm = nn.BatchNorm1d(channels)
        self.hidden = nn.Sequential(nn.Dropout(_DROPPED), nn.Conv1d(channels, _HIDDEN, 1), nn.ReLU())
        self.vote = nn.Conv1d(_HIDDEN, 2, 1)

    def votes(self, profiles: Tensor) -> tuple[Tensor, Tensor]:
        """Octaves that every scale votes for, and its say: [N, S] each."""
        vote, say = self.vote(self.hidden(self.norm(self.even(profiles)))).unbind(1)
        return self.octaves + vote, say.softmax(1)

    def forward(self, profiles: Tensor) -> Tensor:
        votes, say = self.votes(profiles)
        return (votes * say).sum(1)

    def sharpness(self, profiles: Tensor) -> Tensor:
        """One where all scales agree, a half where they differ by an octave."""
        votes, say = self.votes(profiles)
        middle = (votes * say).sum(1, keepdim=True)
        return 1 / (1 + (say * (votes - middle).square()).sum(1))


class Shift(Readout):
    """By how far profiles must be shifted along the axis to look like others. Needs no training.

    Every profile of a picture is compared with many others of it, each of which says how much larger it looks. Those
    that it resembles count more than others, so that a road is compared with the road and a tree with trees. A
    difference of all channels and scales together, as a brighter picture makes, does not count.
    """

    shifts: Tensor  # [M], in steps of the scales
    reads: Tensor  # [M, S, S], how a scale of a shifted profile reads those of another; rows without one are zero

    def __init__(self, channels: int, scales: Scales) -> None:
        super().__init__(channels, scales)
        count = len(scales)
        shifts = torch.arange(-(count - _COMMON) * _PARTS, (count - _COMMON) * _PARTS + 1) / _PARTS
        places = torch.arange(count) - shifts[:, None]
        inside = (places >= 0) & (places <= count - 1)
        hats = (1 - (places[:, :, None] - torch.arange(count)).abs()).clamp_min(0)
        self.register_buffer("shifts", shifts, persistent=False)
        self.register_buffer("reads", hats * inside[:, :, None], persistent=False)

    def embed(self, profiles: Tensor) -> Tensor:
        """What is compared, [N, C, S] -> [N, C', S]."""
        return self.even(profiles)

    def answer(self, costs: Tensor) -> Tensor:
        """Shifts in steps from the costs of all shifts, [..., M] -> [...]: the best, refined by a parabola."""
        best = costs.argmin(-1, keepdim=True).clamp(1, costs.shape[-1] - 2)
        before, at, after = (costs.gather(-1, best + off) for off in (-1, 0, 1))
        off = (before - after) / (2 * (before - 2 * at + after)).clamp_min(_LEAST)
        return (self.shifts[best] + off.clamp(-0.5, 0.5) / _PARTS)[..., 0]

    def compare(self, profiles: Tensor, others: Tensor) -> Tensor:
        one, other = self.embed(torch.cat([profiles, others])).chunk(2)
        cross = torch.einsum("ncs,ncl->nsl", one, other)
        forth = self.answer(self._costs(_Sums.of(one), _Sums.of(other), cross))
        back = self.answer(self._costs(_Sums.of(other), _Sums.of(one), cross.mT))
        return self.step * (forth - back) / 2

    def read(self, profiles: Tensor, weights: Tensor | None = None) -> Reading:
        seen = self.embed(profiles)
        if len(seen) == 0:
            return Reading(seen.sum((1, 2)), seen.sum((1, 2)))
        weights = seen.new_ones(len(seen)) if weights is None else weights.to(seen)
        chosen = _spread(weights)
        octaves, costs = self._against(seen[chosen], seen[chosen])
        octaves = (octaves - octaves.T) / 2
        like = costs + costs.T
        others = ~torch.eye(len(like), dtype=torch.bool, device=like.device)
        usual = _LEAST + (torch.quantile(like[others], _ALIKE) if len(like) > 1 else 0.0)
        trust = (-like / usual).exp() * weights[chosen] * weights[chosen, None]
        solved = _solved(octaves, trust.fill_diagonal_(0))
        votes, costs = self._against(seen, seen[chosen])
        trust = (-2 * costs / usual).exp() * weights[chosen] + _LEAST
        return Reading(*_agreed(votes + solved, trust))

    def _against(self, seen: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """By how many octaves each looks larger than each other, and how much they differ all the same: [N, A] each."""
        octaves, costs, sums = [], [], _Sums.of(others)
        for some in torch.split(seen, _AT_ONCE):
            cross = torch.einsum("ncs,acl->nasl", some, others)
            found = self._costs(_Sums(*(part[:, None] for part in _Sums.of(some))), sums, cross)
            octaves.append(self.step * self.answer(found))
            costs.append(found.amin(-1))
        return torch.cat(octaves), torch.cat(costs)

    def _costs(self, one: _Sums, other: _Sums, cross: Tensor) -> Tensor:
        """The variance of the difference of profiles from others, for every shift: [..., M].

        It is made of products of a scale of the one with a scale of the other, so that shifts cost next to nothing.

        Args:
            one: Of the profiles.
            other: Of the others.
            cross: Products of a scale of the one with a scale of the other, [..., S, S].
        """
        inside = self.reads.sum(2).T  # [S, M], 0 or 1
        both = torch.einsum("msl,msk->mlk", self.reads, self.reads)
        squares = one.squares.diagonal(dim1=-2, dim2=-1) @ inside
        squares = (
            squares - 2 * cross.flatten(-2) @ self.reads.flatten(1).T + other.squares.flatten(-2) @ both.flatten(1).T
        )
        sums = one.values @ inside - other.values @ self.reads.sum(1).T
        count = one.channels * inside.sum(0)
        return (squares / count - (sums / count).square()).clamp_min(0)


class _Sums(NamedTuple):
    """Over the channels of profiles: of values [..., S], of products of two scales [..., S, S], and how many."""

    values: Tensor
    squares: Tensor
    channels: Tensor

    @classmethod
    def of(cls, profiles: Tensor) -> _Sums:
        products = torch.einsum("ncs,nck->nsk", profiles, profiles)
        return cls(profiles.sum(1), products, products.new_full((len(profiles), 1), profiles.shape[1]))


def _spread(weights: Tensor) -> Tensor:
    """Numbers of some profiles, spread evenly over all, those without weight left out if there are others."""
    known = (weights > _SURE * weights.max()).nonzero()[:, 0]
    known = known if len(known) > 1 else torch.arange(len(weights), device=weights.device)
    places = torch.linspace(0, len(known) - 1, min(_ANCHORS, len(known)))
    return known[places.round().long()]


def _solved(octaves: Tensor, trust: Tensor) -> Tensor:
    """Octaves [A] whose differences are nearest to given ones [A, A], of which some are far off; their mean is zero."""
    exact, wanted = trust.cpu().double(), octaves.cpu()
    weights, ones = exact, torch.eye(len(exact), dtype=torch.float64)
    found = torch.zeros_like(weights[0])
    steady = _LEAST * weights.sum(1).max().clamp_min(_LEAST)
    for _ in range(_ROUNDS):
        laplacian = weights.sum(1).diag() - weights
        found = torch.linalg.solve(laplacian + steady * ones, (weights * wanted).sum(1))
        weights = exact / (found[:, None] - found - wanted).abs().clamp_min(_CLOSE)
    return (found - found.mean()).to(octaves)


def _agreed(votes: Tensor, trust: Tensor) -> tuple[Tensor, Tensor]:
    """What votes [N, A] agree on, the more trusted the more, and how much they do, 0 to 1: [N] each."""
    found = (votes * trust).sum(1) / trust.sum(1)
    for _ in range(_ROUNDS):
        weights = trust / (votes - found[:, None]).abs().clamp_min(_CLOSE)
        found = (votes * weights).sum(1) / weights.sum(1)
    apart = ((votes - found[:, None]).abs() * trust).sum(1) / trust.sum(1)
    return found, 1 / (1 + (apart / _APART).square())


class Matched(Shift):
    """Like `Shift`, but it learns which mixtures of channels to compare, the same at all scales."""

    def __init__(self, channels: int, scales: Scales) -> None:
        super().__init__(channels, scales)
        self.norm = nn.BatchNorm1d(channels)
        self.mix = nn.Conv1d(channels, _EMBEDDED, 1, bias=False)
        self.sharp = nn.Parameter(torch.tensor(_SHARPNESS).log())

    def embed(self, profiles: Tensor) -> Tensor:
        mixed: Tensor = self.mix(self.norm(self.even(profiles)))
        return mixed

    def answer(self, costs: Tensor) -> Tensor:
        """The mean of shifts, the more weighted the smaller their costs."""
        usual = costs.mean(-1, keepdim=True) + _LEAST
        return (-self.sharp.exp() * costs / usual).softmax(-1) @ self.shifts


def _checksum(mark: str) -> Tensor:
    return torch.tensor(list(hashlib.sha256(mark.encode()).digest()), dtype=torch.uint8)


def _mlp(inputs: int, dropped: float = 0.0) -> nn.Sequential:
    """The paper's: one hidden layer of 256."""
    return nn.Sequential(
        nn.Dropout(dropped), nn.Linear(inputs, _HIDDEN), nn.ReLU(), nn.Dropout(dropped), nn.Linear(_HIDDEN, 1)
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
