"""Siamese networks: sizes as in the paper, pretrained weights, and the scale axis."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from scale_disco import bake
from scale_disco.models import create_model, list_models
from scale_disco.tasks.io.samples import photos
from scale_disco.tasks.io.weights import PIXELS, fit_kernels
from scale_disco.tasks.tracking.crop import crops, mean_color
from scale_disco.tasks.tracking.networks import Siamese
from tests.conftest import tiered

NAMES = list_models("track")
PLUS = ["track/siamfc+", "track/se-siamfc+", "track/disco"]


@pytest.fixture(autouse=True)
def _no_gradients():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def randomized_norms(network: nn.Module) -> nn.Module:
    """Give batch norms random statistics, as after training."""
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 2)
            part.weight.uniform_(0.5, 1.5)
            part.bias.normal_(0, 0.1)
    return network.eval()


def random_crops(count: int = 2, side: int = 255) -> torch.Tensor:
    return torch.rand(count, 3, side, side) * 255


def test_every_network_of_table_4_is_registered():
    assert set(NAMES) == {"track/siamfc", "track/trisiam", *PLUS}


@pytest.mark.parametrize("name", NAMES)
def test_scores_have_a_map_per_shift(name):
    network = create_model(name).eval()
    scores = network(random_crops(), random_crops())
    assert scores.place.shape == (2, 17, 17)
    if network.template_octaves:
        assert scores.shifts.shape == (2, len(network.template_octaves), 17, 17)
        assert float(scores.shifts.abs().max()) <= 1 + 1e-5  # cosines
        assert network.template_octaves[0] == -network.template_octaves[-1] < 0
    else:
        assert scores.shifts is None


@pytest.mark.parametrize(
    ("name", "count"), [("track/siamfc+", 1_444_928), ("track/disco", 1_444_928), ("track/se-siamfc+", 1_449_024)]
)
def test_parameter_counts_are_those_of_the_authors(name, count):
    network = create_model(name)
    assert sum(parameter.numel() for parameter in network.parameters()) == count


@pytest.mark.parametrize("name", PLUS)
def test_map_sizes(name):
    network = create_model(name).eval()
    assert network.embed(random_crops(1, 127)).shape[-2:] == (5, 5)
    assert network.embed(random_crops(1)).shape[-2:] == (21, 21)


@pytest.mark.parametrize("name", tiered(NAMES, lambda name: name in ("track/siamfc", "track/siamfc+")))
def test_one_template_serves_many_crops(name):
    network = create_model(name).eval()
    template, many = network.template(random_crops(1)), random_crops(3)
    together = network.compare(template, many)
    for index in range(3):
        alone = network.compare(template, many[index : index + 1])
        torch.testing.assert_close(together.place[index], alone.place[0], rtol=1e-4, atol=1e-4)
    doubled = type(template)(*(None if part is None else part.repeat(3, 1, 1, 1, 1, 1) for part in template))
    torch.testing.assert_close(network.compare(doubled, many).place, together.place, rtol=1e-4, atol=1e-4)


def test_first_scale_of_disco_equals_siamfc_plus_exactly():
    plus = randomized_norms(create_model("track/siamfc+"))
    disco = create_model("track/disco").eval()
    disco.load_state_dict(plus.state_dict())
    images = random_crops()
    assert torch.equal(disco.embed(images)[:, :, 0], plus.embed(images)[:, :, 0])


@pytest.mark.parametrize("name", PLUS)
def test_baked_features_are_equal(name):
    network = randomized_norms(create_model(name))
    images = random_crops(1)
    normalized = network.mean.new_tensor(0) + (images - network.mean[:, None, None]) / network.deviation[:, None, None]
    torch.testing.assert_close(bake(network.features)(normalized), network.features(normalized), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["track/se-siamfc+", "track/disco"])
def test_a_template_matches_itself_best_without_shift(name):
    network = randomized_norms(create_model(name))
    image = torch.nn.functional.interpolate(random_crops(1, 32), 255, mode="bicubic")
    shifts = network(image, image).shifts[0, :, 8, 8]
    assert shifts.argmax() == 1
    assert float(shifts[1]) > 0.95


@pytest.fixture(scope="module")
def pretrained(shared):
    weights = shared / "data" / "resnet50" / "resnet50_caffe_fp16.safetensors"
    return create_model("track/disco", pretrained=weights).eval()


@pytest.mark.parametrize("photo", tiered(range(6), lambda photo: photo < 2))
def test_a_rescaled_object_matches_the_shifted_template(photo, pretrained):
    """Enlarged by one scale step, it matches the template shifted up by one best; shrunk, the one shifted down."""
    frame = (photos()[photo] * 255).round().byte().expand(3, -1, -1)
    sides = torch.tensor([100 * 2**-octaves for octaves in (0, -0.5, 0, 0.5)])
    exemplar, *search = crops(frame, torch.full((4, 2), 80.0), sides, 255, mean_color(frame))
    template = pretrained.template(exemplar[None])
    best = [int(pretrained.compare(template, crop[None]).shifts[0, :, 8, 8].argmax()) for crop in search]
    assert best == [0, 1, 2]


def resnet_state() -> dict[str, torch.Tensor]:
    return randomized_norms(create_model("resnet50/cnn")).state_dict()


def saved(tmp_path, state, name="weights.pth"):
    torch.save(state, tmp_path / name)
    return tmp_path / name


def test_resnet_weights_are_loaded(tmp_path):
    state = resnet_state()
    path = saved(tmp_path, state)
    for name in ("track/siamfc+", "track/disco"):
        features = create_model(name, pretrained=path).features.state_dict()
        for own, theirs in (
            ("conv1", "conv1"),
            ("layer1.2.conv2", "layer1.2.conv2"),
            ("layer2.0.conv2", "layer2.0.conv2"),
            ("layer2.2.conv2", "layer2.1.conv2"),  # a pool is in between
            ("layer2.4.conv3", "layer2.3.conv3"),
        ):
            torch.testing.assert_close(features[f"{own}.weight"], state[f"{theirs}.weight"])
        torch.testing.assert_close(features["layer2.4.bn1.running_var"], state["layer2.3.bn1.running_var"])


def test_resnet_weights_are_fitted_to_hermite_kernels(tmp_path):
    """At the smallest scale 3x3 kernels are fitted exactly; of the 7x7 stem the middle 5x5."""
    state = resnet_state()
    network = create_model("track/se-siamfc+", pretrained=saved(tmp_path, state))
    conv = network.features.layer1[1].conv2
    kernels = torch.einsum("oif,fhw->oihw", conv.weight[:, :, 0], conv.basis.stencils[0].functions.float())
    torch.testing.assert_close(kernels, state["layer1.1.conv2.weight"], atol=1e-5, rtol=1e-4)
    stem = network.features.conv1
    kernels = torch.einsum("oif,fhw->oihw", stem.weight, stem.basis.stencils[0].functions.float())
    torch.testing.assert_close(kernels, state["conv1.weight"][:, :, 1:-1, 1:-1], atol=1e-5, rtol=1e-4)
    # Minimum-norm weights: kernels of larger scales are no larger than those of the smallest.
    norms = [
        float(torch.einsum("oif,fhw->oihw", stem.weight, stencil.functions.float()).norm())
        for stencil in stem.basis.stencils
    ]
    assert max(norms) <= 1.01 * norms[0]
    first = network.features.layer1[0].conv1
    torch.testing.assert_close(first.weight[:, :, 0, 0], state["layer1.0.conv1.weight"][:, :, 0, 0])
    assert float(first.weight[:, :, 1].abs().max()) == 0


def test_fitted_weights_have_minimum_norm():
    basis = create_model("track/se-siamfc+").features.conv1.basis
    kernels = torch.randn(2, 3, 7, 7)
    fitted = fit_kernels(kernels, basis)
    matrix = basis.stencils[0].functions.double().flatten(1)
    null = torch.linalg.svd(matrix.T).Vh[torch.linalg.matrix_rank(matrix) :]
    assert float((fitted.double() @ null.T).abs().max()) < 1e-5


@pytest.mark.parametrize(
    "before", tiered(["", "module.", "module.network.features.", "features.features."], lambda before: before == "")
)
def test_siamdw_files_are_loaded(tmp_path, before):
    plus = randomized_norms(create_model("track/siamfc+"))
    state = {f"{before}{name}": tensor for name, tensor in plus.features.state_dict().items()}
    for name in ("track/siamfc+", "track/disco"):
        network = create_model(name, pretrained=saved(tmp_path, {"state_dict": state})).eval()
        assert network.mean.tolist() == [0, 0, 0]  # SiamDW does not normalize
        assert network.deviation.tolist() == [1, 1, 1]
        images = random_crops(1)
        assert torch.equal(network.features(images).reshape(1, 512, -1, 21, 21)[:, :, 0], plus.features(images))


def test_se_siamfc_files_are_loaded(tmp_path):
    """Their shapes, buffers and normalization: 1x1 kernels stored with four axes, pixels from 0 to 1."""
    net = randomized_norms(create_model("track/se-siamfc+"))
    state = {}
    for name, tensor in net.features.state_dict().items():
        if name.endswith("_extra_state"):
            continue
        if tensor.ndim == 4 and tensor.shape[-1] == 1 and tensor.shape[2] == 2:
            tensor = tensor[..., None]
        state[f"features.features.{name}"] = tensor
    state["features.features.conv1.basis"] = torch.zeros(49, 3, 9, 9)
    state["mean"] = torch.tensor([0.485, 0.456, 0.406]).reshape(1, 3, 1, 1)
    state["std"] = torch.tensor([0.229, 0.224, 0.225]).reshape(1, 3, 1, 1)
    again = create_model("track/se-siamfc+", pretrained=saved(tmp_path, state)).eval()
    images = random_crops(1)
    torch.testing.assert_close(again.embed(images), net.embed(images), rtol=1e-3, atol=1e-3)


def test_own_files_keep_gain_and_offset(tmp_path):
    plus = randomized_norms(create_model("track/siamfc+"))
    plus.gain.fill_(0.03)
    plus.offset.fill_(-1.5)
    path = saved(tmp_path, plus.state_dict())
    for name in ("track/siamfc+", "track/disco"):
        network = create_model(name, pretrained=path)
        assert float(network.gain) == pytest.approx(0.03)
        assert float(network.offset) == -1.5
        assert torch.equal(network.mean, plus.mean)
        loaded, expected = network.features.state_dict(), plus.features.state_dict()
        assert list(loaded) == list(expected)
        assert all(torch.equal(loaded[key], expected[key]) for key in expected)


def test_pixel_normalization_follows_the_weights(tmp_path):
    path = saved(tmp_path, resnet_state())
    network = create_model("track/siamfc+", pretrained=path)
    assert tuple(network.mean.tolist()) == pytest.approx(PIXELS["imagenet"][0])
    caffe = create_model("track/siamfc+", pretrained=path, pixels="caffe")
    assert torch.equal(caffe.features.conv1.weight, network.features.conv1.weight.flip(1))  # BGR
    with pytest.raises(ValueError, match="pixels must be one of imagenet, caffe, raw, got 'sepia'"):
        create_model("track/siamfc+", pretrained=path, pixels="sepia")


def test_the_moving_average_of_a_run_is_loaded(tmp_path):
    plus, other = randomized_norms(create_model("track/siamfc+")), create_model("track/siamfc+")
    state = {f"network.{name}": tensor for name, tensor in other.state_dict().items()}
    state |= {f"average.module.{name}": tensor for name, tensor in plus.state_dict().items()}
    state["average.n_averaged"] = torch.tensor(3)
    network = create_model("track/disco", pretrained=saved(tmp_path, {"state_dict": state}))
    assert torch.equal(network.features.state_dict()["conv1.weight"], plus.features.conv1.weight)


def test_invalid_arguments_raise(tmp_path):
    odd = create_model("track/siamfc+").state_dict() | {"gain": torch.zeros(3)}
    with pytest.raises(ValueError, match="does not fit: gain has 3 values, not 1"):
        create_model("track/siamfc+", pretrained=saved(tmp_path, odd))
    with pytest.raises(ValueError, match="sha256 and pixels require pretrained"):
        create_model("track/disco", pixels="raw")
    with pytest.raises(ValueError, match="in geometric progression"):
        create_model("track/disco", scales=(1, 1.5, 2))
    with pytest.raises(ValueError, match=r"track/siamfc: .* it lacks conv1\.0\.weight"):
        create_model("track/siamfc", pretrained=saved(tmp_path, resnet_state()))
    with pytest.raises(ValueError, match="pixels must be one of"):
        Siamese(nn.Identity(), pixels="bytes")


@pytest.mark.parametrize("name", PLUS)
def test_stages_cover_all_parameters(name):
    network = create_model(name)
    covered = {id(parameter) for stage in network.stages() for parameter in stage.parameters()}
    assert covered == {id(parameter) for parameter in network.parameters()}
    last = sum(parameter.numel() for parameter in network.stages()[0].parameters())
    assert last == 280_064  # the last block, as in the authors' code
