"""Rendered planes: exact geometry, no aliasing, little blur, and even textures."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from scale_disco import resample
from scale_disco.tasks.io.textures import textures
from scale_disco.tasks.scene import planes as module
from scale_disco.tasks.scene.planes import Plane, draw_plane, evenness, planes, render, texture_square

ANGLES = st.floats(-7, 7)
PLANES = st.builds(
    Plane,
    st.floats(1, 16),
    ANGLES,
    st.floats(0.3, 3),
    st.floats(0.2, 4),
    ANGLES,
    st.tuples(st.floats(-1000, 1000), st.floats(-1000, 1000)),
)
SIZES = st.tuples(st.integers(32, 800), st.integers(32, 800))


def in_texture(plane, size, places):
    """Positions [N, 2] of an image in the texture, [N, 2], and w."""
    matrix = plane.homography(*size)
    uvw = torch.cat([places, torch.ones(len(places), 1).double()], 1) @ matrix.T
    return uvw[:, :2] / uvw[:, 2:], uvw[:, 2]


def corners(size):
    width, height = size
    return torch.tensor([[0, 0], [width, 0], [0, height], [width, height]]).double()


def noise(side=128):
    return torch.from_numpy(np.array(textures(2)[1].read())[:side, :side]).permute(2, 0, 1).float()


@given(PLANES, SIZES)
def test_octaves_agree_with_finite_differences(plane, size):
    width, height = size
    pixels = torch.tensor([[0, 0], [width - 1, 0], [width // 2, height // 3], [width - 1, height - 1]])
    step = 1e-4 * torch.eye(2).double()
    ahead, behind = (
        [in_texture(plane, size, pixels + 0.5 + sign * way)[0] for way in step] for sign in (1, -1)
    )  # each [N, 2]
    jacobian = torch.stack([(a - b) / 2e-4 for a, b in zip(ahead, behind, strict=True)], 2)
    expected = -0.5 * torch.linalg.det(jacobian).log2()
    torch.testing.assert_close(plane.octaves(*size)[pixels[:, 1], pixels[:, 0]], expected, atol=2e-6, rtol=0)


@given(PLANES, SIZES)
def test_a_pinhole_camera_sees_the_plane(plane, size):
    """Points where rays meet the plane are as far apart in space as in the texture, up to one factor."""
    width, _ = size
    places = torch.rand(6, 2, dtype=torch.float64) * torch.tensor(size)
    texels, nearness = in_texture(plane, size, places)
    rays = (places - torch.tensor(size) / 2) / (plane.focal * width)
    points = torch.cat([rays, torch.ones(6, 1)], 1) / nearness[:, None]
    ratios = torch.pdist(texels) / torch.pdist(points)
    torch.testing.assert_close(ratios, ratios[:1].expand(15), atol=0, rtol=1e-6)


@given(PLANES, SIZES)
def test_ratio_tilt_density_and_offset_are_as_specified(plane, size):
    _, nearness = in_texture(plane, size, corners(size))
    assert float(nearness.max()) == pytest.approx(1)
    assert float(nearness.min()) == pytest.approx(1 / plane.ratio)
    margin = 2 * torch.tensor([[-1, -1], [1, -1], [-1, 1], [1, 1]])
    assert (
        in_texture(plane, size, corners(size) + margin)[1].min() > 0
    )  # the margin of the filter is in front of the camera, too
    assert float(torch.linalg.det(plane.homography(*size))) == pytest.approx(plane.density**2)  # det J where w = 1
    middle = torch.tensor(size)[None].double() / 2
    torch.testing.assert_close(in_texture(plane, size, middle)[0][0], torch.tensor(plane.offset).double())
    ahead = middle + torch.tensor([math.cos(plane.tilt), math.sin(plane.tilt)])
    assert plane.ratio < 1.001 or in_texture(plane, size, ahead)[1] > in_texture(plane, size, middle)[1]


def test_cells_of_a_rendered_grid_of_dots_have_the_true_size():
    side, size = 32, (320, 240)
    steps = torch.arange(side) + 0.5 - side / 2
    dot = 255 * torch.exp(-(steps**2 + steps[:, None] ** 2) / 18).expand(3, side, side)
    plane = Plane(2.0, tilt=1.0, density=0.8, turn=0.4, offset=(7, 3))
    rendered = render(dot, plane, *size)
    dots = measured_dots(rendered.image[0].double(), torch.linalg.inv(plane.homography(*size)), side)
    errors = []
    for (column, row), here in dots.items():
        around = [
            dots.get(cell) for cell in ((column + 1, row), (column - 1, row), (column, row + 1), (column, row - 1))
        ]
        if all(place is not None for place in around):
            right, left, below, above = around
            (a, b), (c, d) = (right - left) / 2, (below - above) / 2
            x, y = here.astype(int)
            errors.append(0.5 * math.log2((a * d - b * c) / side**2) - float(rendered.octaves[y, x]))
    assert len(errors) > 20
    assert max(map(abs, errors)) < 0.04
    assert abs(np.mean(errors)) < 0.01


def measured_dots(gray, inverse, side, reach=7):
    """Centroids of the dots near their expected positions, by column and row of their cells."""
    places, centroids = torch.arange(2 * reach + 1).double() + 0.5, {}
    height, width = gray.shape
    for column, row in np.ndindex(40, 40):
        cell = column - 20, row - 20
        x, y, w = (inverse @ torch.tensor([side * (cell[0] + 0.5), side * (cell[1] + 0.5), 1]).double()).tolist()
        left, top = math.floor(x / w) - reach, math.floor(y / w) - reach
        if w > 0 and 0 <= left < width - 2 * reach and 0 <= top < height - 2 * reach:
            window = (gray[top : top + len(places), left : left + len(places)] - 60).clamp_min(0)
            weight = window.sum()
            centroids[cell] = np.array([left + window.sum(0) @ places / weight, top + window.sum(1) @ places / weight])
    return centroids


@pytest.mark.parametrize(("density", "tolerance"), [(1, 0.1), (2, 0.04), (4, 0.04)])
def test_a_fronto_parallel_plane_is_the_resampled_texture(density, tolerance):
    texture = noise(256)
    side = 256 // density
    image = render(texture, Plane(1.0, tilt=0.0, density=density, offset=(128, 128)), side, side).image
    expected = resample(texture[None], 1 / density, antialias=True)[0]
    error = (image - expected)[:, 4:-4, 4:-4].std()  # its borders are mirrored, not cut
    assert error < tolerance * expected.std()
    assert image.float().std() > 0.95 * expected.std()


def test_it_agrees_with_dense_supersampling(monkeypatch):
    plane = Plane(6.0, tilt=1.2, focal=1.2, density=0.7, turn=0.5, offset=(20, 30))
    image = render(noise(), plane, 160, 120).image.float()
    monkeypatch.setattr(module, "_SAMPLES", (16, 16))
    monkeypatch.setattr(module, "_TILE", 1000)
    truth = render(noise(), plane, 160, 120).image.float()
    assert (image - truth).std() < 0.02 * truth.std()
    assert image.mean() == pytest.approx(float(truth.mean()), abs=0.2)


def test_tiles_join_without_a_seam(monkeypatch):
    plane = Plane(1.0, density=1.5, turn=0.3)  # every pixel has as many samples
    image = render(noise(), plane, 160, 120).image.int()
    monkeypatch.setattr(module, "_TILE", 1000)
    assert (image - render(noise(), plane, 160, 120).image.int()).abs().max() <= 1


def stripes(axis, period=8):
    waves = 127.5 + 100 * torch.cos(2 * math.pi * (torch.arange(64) + 0.5) / period)
    return waves.expand(3, 64, 64) if axis == "u" else waves[:, None].expand(3, 64, 64)


def test_foreshortened_stripes_turn_gray_and_those_along_the_depth_stay():
    """On a plane like a floor, u runs along the depth and v across."""
    plane = Plane(6.0, focal=1.2, density=0.5)
    matrix = plane.homography(320, 240)
    x, y = torch.tensor([160.5]).double(), torch.arange(240).double() + 0.5
    _, _, right, down = module._footprints(matrix, x, y)
    along, across = down[:, 0] / 8, right[:, 0] / 8  # periods per pixel
    fading, staying = ((render(stripes(axis), plane, 320, 240).image[0].float() - 127.5) for axis in "uv")
    rms = [values.square().mean(1).sqrt() / (100 / 2**0.5) for values in (fading, staying)]
    far = along > 0.8
    assert far.sum() > 30
    assert rms[0][far].max() < 0.03
    assert rms[1][far & (across < 0.2)].min() > 0.8
    assert rms[1][across < 0.1].min() > 0.9


def test_a_fine_checkerboard_turns_gray_and_keeps_its_mean():
    cells = (torch.arange(64) + 1) // 2  # of two texels, also where mirror images meet
    board = 255.0 * ((cells + cells[:, None]) % 2).expand(3, 64, 64)
    image = render(board, Plane(16.0, tilt=0.3, density=2.0, turn=0.2), 160, 120).image.float()
    assert image.mean() == pytest.approx(127.5, abs=0.5)
    assert (image[:, :, :80] - 127.5).abs().max() < 3


def test_a_texture_too_small_to_resolve_is_its_mean_color():
    image = render(noise(64), Plane(2.0, density=1e5), 64, 64).image.float()
    assert (image - noise(64).mean((1, 2), keepdim=True)).abs().max() < 2


def test_mirror_images_join_without_a_step():
    ramp = torch.linspace(0, 255, 64).expand(3, 64, 64)
    image = render(ramp, Plane(1.0, tilt=0.0, density=0.5), 400, 64).image.int()
    assert image.max() - image.min() > 250
    assert image.diff(dim=2).abs().max() <= 3
    assert image.diff(dim=1).abs().max() <= 1
    assert torch.equal(image[:, :, :200], image[:, :, 200:].flip(2))


@given(st.integers(0, 2**32))
def test_drawn_planes(seed):
    plane = draw_plane(np.random.default_rng(seed))
    assert plane == draw_plane(np.random.default_rng(seed))
    octaves = plane.octaves(640, 480)
    assert 1.9 < octaves.max() - octaves.min() < 1.5 * math.log2(6)
    assert octaves.max() <= 1


def test_the_same_bytes_every_time():
    plane = draw_plane(np.random.default_rng(3))
    first, second = (render(noise(), plane, 100, 70) for _ in range(2))
    assert (first.image.dtype, first.image.shape) == (torch.uint8, (3, 70, 100))
    assert (first.octaves.dtype, first.octaves.shape) == (torch.float32, (70, 100))
    assert same(first, second)


def same(first, second):
    return all(map(torch.equal, first, second))


def half_empty(width=300, height=200):
    image = np.full((height, width, 3), 90, np.uint8)
    image[:, width // 2 :] = np.random.default_rng(0).integers(0, 256, (height, width - width // 2, 3))
    image[:, : width // 2, 0] += (np.arange(width // 2) % 2).astype(np.uint8)  # even, but of almost no contrast
    return image


def test_the_textured_part_is_found():
    image = half_empty()
    square = texture_square(image, 96)
    assert square.shape == (96, 96, 3)
    assert min(square[:, :6].std(), square[:, -6:].std()) > 60
    assert evenness(square) > 0.9
    assert evenness(image[:200, 50:250]) < 0.05
    assert evenness(np.full((64, 64, 3), 7, np.uint8)) == 0
    assert texture_square(image).shape == (200, 200, 3)
    assert texture_square(image[:5, :9]).shape == (5, 5, 3)


def test_the_square_maximizes_the_minimum_contrast():
    """Against a direct implementation, on a photo-like image."""
    image = np.array(textures(1)[0].read())[:180, :230]
    side, step, block = 101, 6, 25
    gray, scores = image.mean(2), {}
    for top in range(0, 180 - side + 1, step):
        for left in range(0, 230 - side + 1, step):
            blocks = gray[top : top + 4 * block, left : left + 4 * block].reshape(4, block, 4, block)
            scores[top, left] = blocks.std((1, 3)).min()
    top, left = max(scores, key=scores.__getitem__)
    assert np.array_equal(texture_square(image, side), image[top : top + side, left : left + side])


def test_planes_of_the_bundled_photos():
    rendered = list(planes(None, 4, seed=5, width=96, height=64))
    kinds = [name.split("-")[0] for name, _ in rendered]
    assert kinds[::2] == ["photo", "photo"]
    assert set(kinds[1::2]) <= {"noise", "leaves"}
    assert all(int(name.split("-")[1]) >= 10_000 for name, _ in rendered[1::2])
    fewer = list(planes(None, 2, seed=5, width=96, height=64))
    assert [name for name, _ in fewer] == [name for name, _ in rendered[:2]]
    assert all(same(plane, again) for (_, plane), (_, again) in zip(fewer, rendered[:2], strict=True))
    others = next(planes(None, 1, seed=6, width=96, height=64))[1]
    assert not torch.equal(others.octaves, rendered[0][1].octaves)
    assert all(plane.image.float().std() > 5 for _, plane in rendered)


def test_planes_of_a_folder_skip_empty_images_and_repeat(tmp_path):
    (tmp_path / "deep").mkdir()
    good = half_empty()[:, 150:]
    below = good.copy()
    below[100:] = 0
    Image.fromarray(good).convert("RGBA").save(tmp_path / "deep" / "good.png")
    Image.fromarray(good[:, :, 0]).save(tmp_path / "gray.png")
    Image.fromarray(below).save(tmp_path / "empty-below.png")
    Image.new("RGB", (80, 80), "red").save(tmp_path / "flat.png")
    names = [name for name, _ in planes(tmp_path, 8, width=48, height=32)][::2]
    assert sorted(names[:2]) == ["deep/good.png", "gray.png"]
    assert names[2:] == names[:2]


def test_real_photos(shared):
    folder = shared / "data" / "photos"
    if not folder.is_dir():
        pytest.skip("no ../shared/data/photos")
    from scale_disco.tasks.io.textures import source_images

    sky = next(source for source in source_images(folder) if "solidYellowCurve.jpg" in source.name)
    image = np.asarray(sky.read())
    assert texture_square(image).mean(2).std() > 4 * image[:200, :200].mean(2).std()
    name, rendered = next(planes(folder, 1, width=64, height=48))
    assert (folder / name).is_file()
    assert rendered.image.float().std() > 5


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ratio": 0.5}, "ratio must be from 1 to 16, got 0.5"),
        ({"ratio": math.nan}, "ratio must be from 1 to 16, got nan"),
        ({"ratio": 17.0}, "ratio must be from 1 to 16, got 17.0"),
        ({"ratio": 2.0, "focal": 0.0}, "focal must be a positive finite number, got 0.0"),
        ({"ratio": 2.0, "density": math.inf}, "density must be a positive finite number, got inf"),
        ({"ratio": 2.0, "offset": (0.0, math.nan)}, "tilt, turn and offset must be finite"),
    ],
)
def test_invalid_planes_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        Plane(**values)


@pytest.mark.parametrize("shape", [(64, 64), (1, 64, 64), (3, 3, 64), (3, 64, 513), (1, 3, 64, 64)])
def test_invalid_textures_are_refused(shape):
    with pytest.raises(ValueError, match=r"render: expected a texture \[3, h, w\] of 4 to 512 texels a side, got"):
        render(torch.zeros(shape), Plane(2.0))


def test_other_invalid_arguments_are_refused(tmp_path):
    with pytest.raises(ValueError, match="sides of an image must be at least 32 pixels, got 640 x 31"):
        render(noise(), Plane(2.0), 640, 31)
    with pytest.raises(ValueError, match=r"expected an image \[H, W, 3\] of 4 pixels or more, got \(3, 9, 3\)"):
        texture_square(np.zeros((3, 9, 3)))
    with pytest.raises(ValueError, match="side must be at least 4 pixels, got 3"):
        texture_square(np.zeros((9, 9, 3)), 3)
    with pytest.raises(ValueError, match="planes: count must be at least 1, got 0"):
        planes(None, 0)
    with pytest.raises(FileNotFoundError, match="no images in"):
        planes(tmp_path, 1)
    Image.new("RGB", (80, 80), "red").save(tmp_path / "flat.png")
    with pytest.raises(ValueError, match=r"planes: no image of .* has an even texture"):
        next(planes(tmp_path, 1))
