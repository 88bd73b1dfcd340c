"""What reads the scale axis: from profiles [N, C, S] to how large things look, in octaves.

A profile says how strongly every channel answers at every scale, on average over a window. The read-outs of the first
kind give a number for every profile alone, by a small network that learns: from where channels answer most (`argmax`,
the paper's), from the centroid of their answers, from the whole profile, from the first scale alone, or by weights
that are shared along the axis, so that a shifted profile shifts the answer (`equivariant`). Those of the second kind
compare profiles: how far must one be shifted along the axis to look like the other? That takes no training (`shift`),
or learns which mixtures of channels to compare (`matched`).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..scales import Scales

_HIDDEN = 256  # as in the paper
_EMBEDDED = 64
_DROPPED = 0.3
_PARTS = 4  # shifts that are tried from a scale to the next
_COMMON = 3  # scales that two profiles must have in common
_ROUNDS = 6  # of aligning profiles with their mean
_NEEDED = 0.02  # part of the weights that a place of the mean profile needs
_SHARPNESS = 20.0  # of the softmax over shifts, to begin with
_LEAST = 1e-6


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

    def __init__(self, channels: int, scales: Scales) -> None:
        super().__init__()
        octaves = torch.tensor([scales.ratio(k) for k in range(len(scales))], dtype=torch.float64).log2()
        if len(scales) <= _COMMON or (octaves.diff().max() - octaves.diff().min()) > 1e-6:
            raise ValueError(f"Readout: scales must be {_COMMON + 1} or more that grow by one factor, got {scales!r}")
        self.channels, self.step = channels, float(octaves[1])
        self.register_buffer("octaves", octaves.float())
        self.register_buffer("typical", torch.zeros(channels))

    def prepare(self, profiles: Tensor) -> None:
        """Remember how strong channels are, from some profiles."""
        self.typical.copy_(profiles.float().mean((0, 2)))

    @abstractmethod
    def compare(self, profiles: Tensor, others: Tensor) -> Tensor:
        """By how many octaves things look larger in profiles than in others, [N]."""

    @abstractmethod
    def read(self, profiles: Tensor, weights: Tensor | None = None) -> Reading:
        """How large things look in profiles of one picture, the more as their weights [N] say."""

    def even(self, profiles: Tensor) -> Tensor:
        """Profiles with channels of about the same strength, and strong answers drawn together."""
        typical = self.typical if self.typical.any() else profiles.mean((0, 2))
        return (profiles / (typical + _LEAST)[:, None]).sqrt() - 1


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

    Those of one picture are all compared with their mean, which is taken anew when they have been shifted, and again.
    A difference of all channels and scales together, as a brighter picture makes, does not count.
    """

    shifts: Tensor  # [M], in steps of the scales
    reads: Tensor  # [M, S, L], how profiles that are shifted read an axis that goes on at both ends

    def __init__(self, channels: int, scales: Scales) -> None:
        super().__init__(channels, scales)
        count = len(scales)
        self.most = count - _COMMON
        shifts = torch.arange(-self.most * _PARTS, self.most * _PARTS + 1) / _PARTS
        places = torch.arange(count) - shifts[:, None] + self.most
        self.register_buffer("shifts", shifts, persistent=False)
        self.register_buffer("reads", _hats(places, count + 2 * self.most), persistent=False)

    def embed(self, profiles: Tensor) -> Tensor:
        """What is compared, [N, C, S] -> [N, C', S]."""
        return self.even(profiles)

    def answer(self, costs: Tensor) -> Tensor:
        """Shifts in steps from the costs of all shifts [N, M]: the best, refined by a parabola."""
        best = costs.argmin(1).clamp(1, costs.shape[1] - 2)
        before, at, after = (costs.gather(1, (best + off)[:, None])[:, 0] for off in (-1, 0, 1))
        off = (before - after) / (2 * (before - 2 * at + after)).clamp_min(_LEAST)
        off = off.where(before.isfinite() & after.isfinite(), 0.0).clamp(-0.5, 0.5)
        return self.shifts[best] + off / _PARTS

    def compare(self, profiles: Tensor, others: Tensor) -> Tensor:
        one, other = self.embed(torch.cat([profiles, others])).chunk(2)
        forth, back = (self.answer(self._costs(*both)) for both in ((one, other), (other, one)))
        return self.step * (forth - back) / 2

    def read(self, profiles: Tensor, weights: Tensor | None = None) -> Reading:
        seen = self.embed(profiles)
        weights = torch.ones_like(seen[:, 0, 0]) if weights is None else weights.to(seen)
        moved = torch.zeros_like(weights)
        for _ in range(_ROUNDS):
            costs = self._costs(seen, *self._mean(seen, moved, weights))
            moved = self.answer(costs)
            moved = moved - (weights * moved).sum() / weights.sum().clamp_min(_LEAST)
        possible = costs.isfinite()
        usual = costs.where(possible, 0.0).sum(1) / possible.sum(1)
        return Reading(self.step * moved, (1 - costs.amin(1) / (usual + _LEAST)).clamp(0, 1))

    def _costs(self, profiles: Tensor, others: Tensor, known: Tensor | None = None) -> Tensor:
        """The variance of the difference of profiles from others, for every shift: [N, M].

        It is a sum of products of a scale of the one with a scale of the other, so that shifts cost next to nothing.

        Args:
            profiles: [N, C, S].
            others: [N, C, S], or one for all on the longer axis, [1, C, L].
            known: Which places of the longer axis others have, [L].
        """
        length = self.reads.shape[2]
        if known is None:
            others = F.pad(others, (self.most, self.most))
            known = F.pad(others.new_ones(length - 2 * self.most), (self.most, self.most)) > 0
        inside = ~((self.reads > 0) & ~known).any(2)  # [M, S]
        reads = self.reads * inside[:, :, None]
        values = profiles.shape[1] * inside.sum(1)  # that are compared, [M]
        each = inside.to(profiles).T
        cross = torch.einsum("ncs,ncl->nsl", profiles, others.expand(len(profiles), -1, -1))
        gram = torch.einsum("ncl,nck->nlk", others, others)
        squares = profiles.square().sum(1) @ each - 2 * cross.flatten(1) @ reads.flatten(1).T
        squares = squares + gram.flatten(1) @ torch.einsum("msl,msk->mlk", reads, reads).flatten(1).T
        sums = profiles.sum(1) @ each - others.sum(1) @ reads.sum(1).T
        least = values.clamp_min(1)
        costs = (squares / least - (sums / least).square()).clamp_min(0)
        return costs.masked_fill(values < _COMMON * profiles.shape[1], torch.inf)

    def _mean(self, profiles: Tensor, moved: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of profiles [N, C, S] shifted back, on the longer axis: [1, C, L], and which places it has, [L]."""
        count, length = profiles.shape[2], self.reads.shape[2]
        places = torch.arange(count, device=profiles.device) - moved[:, None] + self.most
        shares = _hats(places, length) * weights[:, None, None]  # [N, S, L]
        total = shares.sum((0, 1))
        mean = torch.einsum("ncs,nsl->cl", profiles, shares) / total.clamp_min(_LEAST)
        return mean[None], total > _NEEDED * weights.sum()


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
        possible = costs.isfinite()
        usual = costs.where(possible, 0.0).sum(1, keepdim=True) / possible.sum(1, keepdim=True) + _LEAST
        return (-self.sharp.exp() * costs / usual).softmax(1) @ self.shifts


def _hats(places: Tensor, length: int) -> Tensor:
    """How places between whole ones are made of the two next to them: [...] -> [..., length]."""
    return (1 - (places[..., None] - torch.arange(length, device=places.device)).abs()).clamp_min(0)


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
