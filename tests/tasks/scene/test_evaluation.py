"""Figures of estimators whose predictions are known: the truth, half of it, its opposite, or a constant."""

from __future__ import annotations

import importlib.util
import math
from itertools import starmap

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from scale_disco import Scales
from scale_disco.tasks.scene.copies import Copies, Sizes, find
from scale_disco.tasks.scene.evaluation import (
    DepthPair,
    Figures,
    LabeledScene,
    agreement,
    by_cell,
    cached_profiles,
    copy_figures,
    median,
    ratio_figures,
    scene_figures,
    spearman,
)
from scale_disco.tasks.scene.field import Field, cell_field
from scale_disco.tasks.scene.networks import ScaleEstimator
from scale_disco.tasks.scene.planes import Rendered
from scale_disco.tasks.scene.readout import Absolute

FOUR = Scales([1, 2, 4, 8])


class Brightness(nn.Module):
    """A network whose maps are the brightness of an image, at every scale; counts its forward passes."""

    def __init__(self, fingerprint="brightness"):
        super().__init__()
        self.fingerprint, self.passes = fingerprint, 0

    def forward(self, images):
        self.passes += 1
        bright = nn.functional.avg_pool2d(images.mean(1, keepdim=True), 8, ceil_mode=True)
        return bright[:, :, None].expand(-1, 1, len(FOUR), -1, -1)


class Times(Absolute):
    """Reads brightness, times a factor, as octaves."""

    def __init__(self, factor):
        super().__init__(1, FOUR)
        self.factor = factor

    def forward(self, profiles):
        return self.factor * profiles[:, 0, 0] / 64

    def sharpness(self, profiles):
        return torch.ones(len(profiles))


class Width(Brightness):
    """A network whose maps are the width of the image."""

    def forward(self, images):
        return torch.full_like(super().forward(images), 64 * math.log2(images.shape[3]))


def estimator(factor, network):
    return ScaleEstimator(network, Times(factor)).eval()


def estimators(network, **factors):
    return {name: estimator(factor, network) for name, factor in factors.items()}


def gradient_image(height=64, width=320, low=40.0, high=200.0):
    """An image that gets brighter to the right, with a little noise for contrast, and its brightness."""
    bright = torch.linspace(low, high, width).expand(height, width)
    noise = 20 * (torch.rand(height, width) - 0.5)
    return (bright + noise).round().byte().expand(3, height, width).contiguous(), bright.contiguous()


def copies_of(octaves, windows=5):
    """Copies whose profiles are their sizes."""
    octaves = torch.tensor(octaves)
    profiles = octaves[:, None, None, None].expand(-1, windows, 1, len(FOUR))
    return Copies(profiles.half(), octaves)


COPIES = [copies_of([-1.0, 0.25, 0.5]), copies_of([0.75, -0.5])]
TRUTH = [-1.25, -1.5, -0.25, 1.25]  # of their pairs


def difference(profiles, others):
    return profiles[:, 0, 0] - others[:, 0, 0]


def test_an_oracle_has_no_error():
    figures = ratio_figures(difference, COPIES)
    assert figures[:5] == pytest.approx((0, sum(map(abs, TRUTH)) / 4, 1, 1, 20))
    assert figures.curve[0] == pytest.approx((-1.5, -1.5))
    assert figures.curve[-1] == pytest.approx((1.25, 1.25))


def test_a_constant_prediction_has_the_error_of_a_constant():
    figures = ratio_figures(lambda profiles, _: torch.zeros(len(profiles)), COPIES)
    assert figures.error == figures.constant
    assert (figures.correlation, figures.slope) == (0, 0)


@given(st.floats(-2, 2).filter(lambda value: abs(value) > 0.01))
def test_a_fraction_of_the_octaves_is_the_slope(fraction):
    figures = ratio_figures(lambda *profiles: fraction * difference(*profiles), COPIES)
    assert figures.slope == pytest.approx(fraction, abs=1e-6)
    assert figures.correlation == pytest.approx(math.copysign(1, fraction))
    assert figures.error == pytest.approx(abs(1 - fraction) * figures.constant, abs=1e-6)


def test_ranks_by_hand():
    x, y = torch.tensor([3.0, 1.0, 1.0, 2.0, 5.0]), torch.tensor([9.0, 1.0, 2.0, 2.0, 2.0])
    # ranks 4 1.5 1.5 3 5 and 5 1 3 3 3, about 3: products 2 + 3 + 0 + 0 + 0, squares 9.5 and 8
    assert spearman(x, y) == pytest.approx(5 / math.sqrt(9.5 * 8))
    assert spearman(x, torch.ones(5)) == 0


@pytest.mark.skipif(importlib.util.find_spec("scipy") is None, reason="scipy is not installed")
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=3, max_size=40))
def test_ranks_equal_those_of_scipy(pairs):
    from scipy.stats import spearmanr

    x, y = torch.tensor(pairs, dtype=torch.float64).T
    if min(x.std(), y.std()) > 0:
        assert spearman(x, y) == pytest.approx(spearmanr(x.numpy(), y.numpy()).statistic)


@given(st.integers(1, 40), st.integers(1, 40))
def test_cells_have_the_median_of_known_pixels(height, width):
    values = torch.rand(height, width)
    values[values < 0.3] = math.nan
    cells = by_cell(values, 8)
    assert cells.shape == (math.ceil(height / 8), math.ceil(width / 8))
    for row, column in torch.cartesian_prod(*(torch.arange(length) for length in cells.shape)).tolist():
        pixels = values[8 * row : 8 * row + 8, 8 * column : 8 * column + 8]
        known = pixels[pixels.isfinite()]
        assert cells[row, column].isfinite() == (len(known) >= 3)
        if len(known) >= 3:
            assert cells[row, column] == known.median()


def test_planes_predicted_by_the_truth_and_its_opposite():
    image, bright = gradient_image()
    planes = [(name, Rendered(image, bright / 64)) for name in ("photo-1", "noise-0007", "leaves-0008", "noise.jpg")]
    network = Brightness()
    figures = scene_figures(
        estimators(network, true=1, half=0.5, against=-1, nothing=0), starmap(LabeledScene.of_plane, planes)
    )
    assert network.passes == len(planes)
    assert median(figures["true"]) > 0.995
    assert median(figures["half"]) > 0.995
    assert median(figures["against"]) < -0.995
    assert median(figures["nothing"]) == 0
    assert median(figures["true"], figure="slope") == pytest.approx(0.9, abs=0.05)  # windows end at the edges
    assert median(figures["half"], figure="slope") == pytest.approx(median(figures["true"], figure="slope") / 2)
    assert [image.kind for image in figures["true"]] == ["photograph", "noise", "leaves", "photograph"]
    assert median(figures["true"], "leaves") > 0.995
    assert median(figures["true"], "depth") is None
    assert {image.cells for image in figures["true"]} == {8 * 40}


def test_depth_counts_where_it_is_known():
    image, bright = gradient_image()
    meters = 2 ** (-bright / 64)
    meters[:, 240:] = math.nan
    meters[0, 300:302] = 0.001  # too few to count
    pair = DepthPair("road", image, meters)
    figures = scene_figures(estimators(Brightness(), near=1, far=-1), [LabeledScene.of_depth(pair)])
    assert figures["near"][0].spearman > 0.995
    assert figures["far"][0].spearman < -0.995
    assert figures["near"][0].cells == 8 * 30


def test_a_constant_ground_truth_is_refused():
    scene = LabeledScene("wall", "depth", gradient_image()[0], torch.full((64, 320), 2.0))
    with pytest.raises(
        ValueError, match=r"^scene: wall: the ground truth has 1 values in cells of 8 pixels, needs at least 3$"
    ):
        agreement(Field(torch.zeros(8, 40), torch.ones(8, 40)), scene, 8)


def test_fields_are_those_of_the_whole_estimator():
    image, bright = gradient_image(100, 131)
    bright_estimator = estimator(0.7, Brightness())
    whole = agreement(cell_field(bright_estimator, image), LabeledScene("a", "photograph", image, bright), 8)
    (figures,) = scene_figures({"a": bright_estimator}, [LabeledScene("a", "photograph", image, bright)])["a"]
    assert figures == pytest.approx(whole, abs=2e-3)


def test_profiles_are_shared_by_fingerprint_and_cached(tmp_path):
    image, bright = gradient_image()
    scenes = [
        LabeledScene("a", "photograph", image, bright),
        LabeledScene("b", "photograph", image.flip(2), bright.flip(1)),
    ]
    networks = [Brightness("a"), Brightness("a"), Brightness("b")]
    three = {str(number): estimator(1, network) for number, network in enumerate(networks)}
    cache = tmp_path / "new" / "cache"
    reported = []
    figures = scene_figures(three, scenes, cache=cache, progress=reported.append)
    assert [network.passes for network in networks] == [2, 0, 2]
    assert [scene.name for scene in reported] == ["a", "b"]
    assert figures == scene_figures(three, scenes, cache=cache) == scene_figures(three, scenes)
    assert [network.passes for network in networks] == [4, 0, 4]  # by the last call, without a cache
    files = sorted(cache.iterdir())
    assert len(files) == 4
    assert load_file(files[0])["profiles"].dtype == torch.float16


def test_an_interrupted_evaluation_resumes(tmp_path):
    image, bright = gradient_image()
    scenes = [LabeledScene(str(shift), "photograph", image.roll(shift, 1), bright) for shift in range(3)]

    def stopping(scene):
        if scene.name == "1":
            raise KeyboardInterrupt

    network = Brightness()
    with pytest.raises(KeyboardInterrupt):
        scene_figures(estimators(network, first=1), scenes, cache=tmp_path, progress=stopping)
    again = Brightness()
    scene_figures(estimators(again, first=1), scenes, cache=tmp_path)
    assert (network.passes, again.passes) == (2, 1)


def test_a_damaged_cache_file_is_named(tmp_path):
    image, _ = gradient_image()
    cached_profiles(estimator(1, Brightness()), image, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(ValueError, match=f"^{file}: damaged; delete it to compute it again "):
        cached_profiles(estimator(1, Brightness()), image, tmp_path)


def test_copies_are_evaluated_by_network(tmp_path):
    for number in range(2):
        Image.fromarray(gradient_image()[0].permute(1, 2, 0).numpy()).save(tmp_path / f"{number}.png")
    first, second = Width("first"), Width("second")
    three = estimators(first, true=1, half=0.5) | {"else": estimator(-1, second)}
    reported = []
    sizes, cache = Sizes(copies=3, windows=4), tmp_path / "cache"
    images = find(tmp_path)
    figures = copy_figures(three, images, sizes, cache=cache, progress=reported.append)
    assert list(figures) == ["true", "half", "else"]
    assert reported == ["first", "first", "second", "second"]
    assert first.passes == second.passes == 6
    assert [ratio.slope for ratio in figures.values()] == pytest.approx([1, 0.5, -1], abs=0.01)
    assert figures["true"].error < 0.02
    assert figures["true"].pairs == 2 * 3 * 4
    assert figures == copy_figures(three, images, sizes, cache=cache)
    assert first.passes == 6


def test_figures_as_a_document():
    ratio = ratio_figures(difference, COPIES)
    image, bright = gradient_image()
    planes = scene_figures(
        estimators(Brightness(), first=1), [LabeledScene.of_plane("photo-1", Rendered(image, bright))]
    )["first"]
    document = Figures(ratio, planes).document()
    assert document["ratio"]["pairs"] == 20
    assert document["planes"]["by kind"] == {"photograph": document["planes"]["median"]}
    assert document["planes"]["each"][0]["name"] == "photo-1"
    assert document["depth"] is None
