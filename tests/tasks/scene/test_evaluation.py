"""Figures of estimators whose answers are known: those that read the truth, its half, its opposite, or nothing."""

from __future__ import annotations

import importlib.util
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from scale_disco import Scales
from scale_disco.tasks.scene.copies import Copies, Sizes, find
from scale_disco.tasks.scene.depth import DepthPair
from scale_disco.tasks.scene.evaluation import (
    Figures,
    LabeledScene,
    agreement,
    by_cell,
    copy_figures,
    depth_figures,
    median,
    median_slope,
    plane_figures,
    ratio_figures,
    scene_figures,
    spearman,
    window_profiles,
)
from scale_disco.tasks.scene.field import Field, cell_field
from scale_disco.tasks.scene.networks import ScaleEstimator
from scale_disco.tasks.scene.planes import Rendered
from scale_disco.tasks.scene.readout import Absolute

FOUR = Scales([1, 2, 4, 8])


class Brightness(nn.Module):
    """A network that sees how bright a picture is, in every channel and scale; counts what it was shown."""

    def __init__(self, mark="brightness"):
        super().__init__()
        self.mark, self.shown = mark, 0

    def forward(self, images):
        self.shown += 1
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
    """A network that sees how wide a picture is."""

    def forward(self, images):
        return torch.full_like(super().forward(images), 64 * math.log2(images.shape[3]))


def estimator(factor, network):
    return ScaleEstimator(network, Times(factor)).eval()


def estimators(network, **factors):
    return {name: estimator(factor, network) for name, factor in factors.items()}


def slope_picture(height=64, width=320, low=40.0, high=200.0):
    """A picture that gets brighter to the right with a little noise for contrast, and its brightness."""
    bright = torch.linspace(low, high, width).expand(height, width)
    noise = 20 * (torch.rand(height, width) - 0.5)
    return (bright + noise).round().byte().expand(3, height, width).contiguous(), bright.contiguous()


def copies_of(octaves, windows=5):
    """Copies whose profiles have their size written in them."""
    octaves = torch.tensor(octaves)
    profiles = octaves[:, None, None, None].expand(-1, windows, 1, len(FOUR))
    return Copies(profiles.half(), octaves)


COPIES = [copies_of([-1.0, 0.25, 0.5]), copies_of([0.75, -0.5])]
TRUTH = [-1.25, -1.5, -0.25, 1.25]  # of their pairs


def difference(one, other):
    return one[:, 0, 0] - other[:, 0, 0]


def test_an_oracle_has_no_error():
    figures = ratio_figures(difference, COPIES)
    assert figures[:5] == pytest.approx((0, sum(map(abs, TRUTH)) / 4, 1, 1, 20))
    assert figures.curve[0] == pytest.approx((-1.5, -1.5))
    assert figures.curve[-1] == pytest.approx((1.25, 1.25))


def test_whoever_says_the_same_of_all_has_the_error_of_a_constant():
    figures = ratio_figures(lambda one, _: torch.zeros(len(one)), COPIES)
    assert figures.error == figures.constant
    assert (figures.correlation, figures.slope) == (0, 0)


@given(st.floats(-2, 2).filter(lambda value: abs(value) > 0.01))
def test_a_part_of_the_octaves_is_the_slope(part):
    figures = ratio_figures(lambda one, other: part * difference(one, other), COPIES)
    assert figures.slope == pytest.approx(part, abs=1e-6)
    assert figures.correlation == pytest.approx(math.copysign(1, part))
    assert figures.error == pytest.approx(abs(1 - part) * figures.constant, abs=1e-6)


def test_ranks_by_hand():
    one, other = torch.tensor([3.0, 1.0, 1.0, 2.0, 5.0]), torch.tensor([9.0, 1.0, 2.0, 2.0, 2.0])
    # ranks 4 1.5 1.5 3 5 and 5 1 3 3 3, about 3: products 2 + 3 + 0 + 0 + 0, squares 9.5 and 8
    assert spearman(one, other) == pytest.approx(5 / math.sqrt(9.5 * 8))
    assert spearman(one, torch.ones(5)) == 0


@pytest.mark.skipif(importlib.util.find_spec("scipy") is None, reason="scipy is not installed")
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=3, max_size=40))
def test_ranks_as_scipy_has_them(pairs):
    from scipy.stats import spearmanr

    one, other = torch.tensor(pairs, dtype=torch.float64).T
    if min(one.std(), other.std()) > 0:
        assert spearman(one, other) == pytest.approx(spearmanr(one.numpy(), other.numpy()).statistic)


@given(st.integers(1, 40), st.integers(1, 40))
def test_cells_have_the_median_of_what_is_known(height, width):
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


def test_planes_read_by_the_truth_and_its_opposite():
    image, bright = slope_picture()
    planes = [(name, Rendered(image, bright / 64)) for name in ("photo-1", "noise-0007", "leaves-0008", "noise.jpg")]
    network = Brightness()
    found = plane_figures(estimators(network, true=1, half=0.5, against=-1, nothing=0), planes)
    assert network.shown == len(planes)
    assert median(found["true"]) > 0.995
    assert median(found["half"]) > 0.995
    assert median(found["against"]) < -0.995
    assert median(found["nothing"]) == 0
    assert median_slope(found["true"]) == pytest.approx(0.9, abs=0.05)  # windows end at the edges
    assert median_slope(found["half"]) == pytest.approx(median_slope(found["true"]) / 2)
    assert [one.kind for one in found["true"]] == ["photograph", "noise", "leaves", "photograph"]
    assert median(found["true"], "leaves") > 0.995
    assert median(found["true"], "depth") is None
    assert {one.cells for one in found["true"]} == {8 * 40}


def test_depth_counts_where_it_is_known():
    image, bright = slope_picture()
    metres = 2 ** (-bright / 64)
    metres[:, 240:] = math.nan
    metres[0, 300:302] = 0.001  # too few to count
    pair = DepthPair("road", image, metres)
    found = depth_figures(estimators(Brightness(), near=1, far=-1), [pair])
    assert found["near"][0].spearman > 0.995
    assert found["far"][0].spearman < -0.995
    assert found["near"][0].cells == 8 * 30


def test_a_truth_that_is_the_same_everywhere_is_refused():
    scene = LabeledScene("wall", "depth", slope_picture()[0], torch.full((64, 320), 2.0))
    with pytest.raises(
        ValueError, match=r"^scene: wall: the truth has 1 values in cells of 8 pixels, needs 3 at least$"
    ):
        agreement(Field(torch.zeros(8, 40), torch.ones(8, 40)), scene, 8)


def test_fields_are_those_of_the_whole_estimator():
    image, bright = slope_picture(100, 131)
    one = estimator(0.7, Brightness())
    whole = agreement(cell_field(one, image), LabeledScene("a", "photograph", image, bright), 8)
    (found,) = scene_figures({"one": one}, [LabeledScene("a", "photograph", image, bright)])["one"]
    assert found == pytest.approx(whole, abs=2e-3)


def test_networks_of_one_mark_see_once_and_are_kept(tmp_path):
    image, bright = slope_picture()
    scenes = [
        LabeledScene("a", "photograph", image, bright),
        LabeledScene("b", "photograph", image.flip(2), bright.flip(1)),
    ]
    networks = [Brightness("a"), Brightness("a"), Brightness("b")]
    three = {str(number): estimator(1, network) for number, network in enumerate(networks)}
    cache = tmp_path / "new" / "cache"
    told = []
    found = scene_figures(three, scenes, cache=cache, progress=told.append)
    assert [network.shown for network in networks] == [2, 0, 2]
    assert [scene.name for scene in told] == ["a", "b"]
    assert found == scene_figures(three, scenes, cache=cache) == scene_figures(three, scenes)
    assert [network.shown for network in networks] == [4, 0, 4]  # by the last call, without a cache
    files = sorted(cache.iterdir())
    assert len(files) == 4
    assert load_file(files[0])["profiles"].dtype == torch.float16


def test_a_stopped_evaluation_goes_on(tmp_path):
    image, bright = slope_picture()
    scenes = [LabeledScene(str(shift), "photograph", image.roll(shift, 1), bright) for shift in range(3)]

    def stopping(scene):
        if scene.name == "1":
            raise KeyboardInterrupt

    network = Brightness()
    with pytest.raises(KeyboardInterrupt):
        scene_figures(estimators(network, one=1), scenes, cache=tmp_path, progress=stopping)
    again = Brightness()
    scene_figures(estimators(again, one=1), scenes, cache=tmp_path)
    assert (network.shown, again.shown) == (2, 1)


def test_a_damaged_file_of_the_cache_is_named(tmp_path):
    image, _ = slope_picture()
    window_profiles(estimator(1, Brightness()), image, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(ValueError, match=f"^{file}: damaged; delete it to see the picture anew "):
        window_profiles(estimator(1, Brightness()), image, tmp_path)


def test_copies_of_pictures_by_network(tmp_path):
    for number in range(2):
        Image.fromarray(slope_picture()[0].permute(1, 2, 0).numpy()).save(tmp_path / f"{number}.png")
    one, other = Width("one"), Width("other")
    three = estimators(one, true=1, half=0.5) | {"else": estimator(-1, other)}
    told = []
    sizes, cache = Sizes(copies=3, windows=4), tmp_path / "cache"
    pictures = find(tmp_path)
    found = copy_figures(three, pictures, sizes, cache=cache, progress=told.append)
    assert list(found) == ["true", "half", "else"]
    assert told == ["one", "one", "other", "other"]
    assert one.shown == other.shown == 6
    assert [figures.slope for figures in found.values()] == pytest.approx([1, 0.5, -1], abs=0.01)
    assert found["true"].error < 0.02
    assert found["true"].pairs == 2 * 3 * 4
    assert found == copy_figures(three, pictures, sizes, cache=cache)
    assert one.shown == 6


def test_figures_as_a_document():
    ratio = ratio_figures(difference, COPIES)
    image, bright = slope_picture()
    planes = plane_figures(estimators(Brightness(), one=1), [("photo-1", Rendered(image, bright))])["one"]
    document = Figures(ratio, planes).document()
    assert document["ratio"]["pairs"] == 20
    assert document["planes"]["by kind"] == {"photograph": document["planes"]["median"]}
    assert document["planes"]["each"][0]["name"] == "photo-1"
    assert document["depth"] is None
