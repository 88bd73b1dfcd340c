"""Synthetic sequences: exact boxes, kinds of motion, disjoint parts, and resuming after an interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st
from PIL import Image

from scale_disco.tasks.io.images import load_frame
from scale_disco.tasks.io.textures import SHORTEST, source_images, split, textures
from scale_disco.tasks.tracking.data.motion import (
    APART,
    FASTEST,
    JUMP,
    KINDS,
    OCTAVES,
    SMALLEST,
    ObjectShape,
    largest_size,
    random_motion,
    random_shape,
)
from scale_disco.tasks.tracking.data.sequences import read_sequences
from scale_disco.tasks.tracking.data.synthetic import NOTE, SequenceRenderer, SequenceSettings, Sprite, build, planned

SMALL = SequenceSettings(count=8, frames=4, size=(128, 96), textures=10)
FRAME = (320, 240)
SEEDS = st.integers(0, 2**32 - 1)
PLACES = st.tuples(st.floats(100, 220), st.floats(100, 140))
SIZES = st.floats(SMALLEST, largest_size(FRAME))


def flat(shape: ObjectShape, side: float = 200) -> Sprite:
    return Sprite(shape, Image.new("RGB", (256, 256), (255, 255, 255)), side)


def drawn(sprite: Sprite, center: tuple[float, float], size: float) -> np.ndarray:
    """A sprite on a black frame, in [0, 1]."""
    pixels = np.zeros((FRAME[1], FRAME[0], 3), np.float32)
    sprite.draw(pixels, np.array(center), size)
    return pixels[..., 0] / 255


def extent(profile: np.ndarray) -> tuple[float, float]:
    """Where a profile crosses 1/2 for the first and the last time, between the centers of its pixels."""
    ends = []
    for line in (profile, profile[::-1]):
        after = int(np.argmax(line >= 0.5))
        low, high = line[after - 1], line[after]
        ends.append(after - 0.5 + (0.5 - low) / (high - low))
    return ends[0], len(profile) - ends[1]


@given(seed=SEEDS, center=PLACES, size=SIZES)
def test_boxes_bound_the_half_opaque_shape(seed, center, size):
    shape = random_shape(np.random.default_rng(seed))
    opacity = drawn(flat(shape), center, size)
    for axis in (0, 1):
        low, high = extent(opacity.max(axis))
        half = shape.box[axis] * size / 2
        assert abs(low - (center[axis] - half)) < 0.3
        assert abs(high - (center[axis] + half)) < 0.3


@given(seed=SEEDS, center=PLACES, size=SIZES)
def test_the_drawn_area_follows_the_size(seed, center, size):
    """The area is a sum over all pixels, so it is accurate to much less than a pixel."""
    shape = random_shape(np.random.default_rng(seed))
    small, large = (float(drawn(flat(shape), center, side).sum()) for side in (size, largest_size(FRAME)))
    assert np.log2(large / small) / 2 == pytest.approx(np.log2(largest_size(FRAME) / size), abs=0.01)


def test_boxes_of_shapes_follow_from_their_waves():
    egg = ObjectShape([0.2, 0.3j])
    angles = np.linspace(0, 2 * np.pi, 100_001)
    points = (1 + (0.2 * np.exp(1j * angles) + 0.3j * np.exp(2j * angles)).real) * np.exp(1j * angles)
    width, height = np.ptp(points.real), np.ptp(points.imag)
    assert egg.box == pytest.approx((width / max(width, height), height / max(width, height)), abs=1e-5)
    with pytest.raises(ValueError, match="moduli that sum to less than 1"):
        ObjectShape([0.5, 0.5j])


@pytest.mark.parametrize("center", [(160.0, 120.0), (160.3, 120.4), (160.5, 120.8)])
def test_edges_are_one_pixel_wide_all_around(center):
    """Across a ramp of one pixel the integral of opacity (1 - opacity) is 1/6, also where the curve runs aslant."""
    shape, size = ObjectShape([0.1j, 0.5, 0.2]), 100.0
    turn = np.exp(1j * np.linspace(0, 2 * np.pi, 2001))
    curve = (1 + (0.1j * turn + 0.5 * turn**2 + 0.2 * turn**3).real) * turn
    length = np.abs(np.diff(curve)).sum() * shape.unit * size
    opacity = drawn(flat(shape), center, size)
    assert float((opacity * (1 - opacity)).sum()) == pytest.approx(length / 6, rel=0.04)


@given(center=PLACES, size=SIZES)
def test_texture_moves_and_scales_with_the_box(center, size):
    """The values of a ramp are positions in the texture."""
    side, length = 150.0, 256
    ramp = np.broadcast_to(np.arange(length, dtype=np.uint8)[None, :, None], (length, length, 3))
    pixels = np.zeros((FRAME[1], FRAME[0], 3), np.float32)
    sprite = Sprite(ObjectShape([]), Image.fromarray(ramp.copy()), side)
    sprite.draw(pixels, np.array(center), size)
    row = pixels[int(center[1]), :, 0]
    inside = np.abs(np.arange(FRAME[0]) + 0.5 - center[0]) < size / 2 - 2
    expected = (np.arange(FRAME[0]) + 0.5 - center[0]) * side / size + length / 2 - 0.5
    assert np.abs(row - expected)[inside].max() < 1


@pytest.mark.parametrize("size", [20.0, 33.3, 47.9])
def test_fine_patterns_are_not_aliased(size):
    board = (np.indices((256, 256)).sum(0) % 2 * 255).astype(np.uint8)
    sprite = Sprite(ObjectShape([]), Image.fromarray(board).convert("RGB"), 200)
    shown = drawn(sprite, (160.4, 120.7), size)
    assert np.abs(shown[shown > 0.4] - 0.5).max() < 0.1
    y, x = np.indices(shown.shape) + 0.5
    within = np.hypot(x - 160.4, y - 120.7) < size / 2 - 2
    assert np.abs(shown[within] - 0.5).max() < 0.02


@given(seed=SEEDS, kind=st.sampled_from(KINDS), frames=st.integers(1, 80), largest=st.floats(2 * SMALLEST, 300))
def test_motions_stay_within_the_limits_of_their_kind(seed, kind, frames, largest):
    motion = random_motion(kind, np.random.default_rng(seed), frames, FRAME, largest)
    octaves = np.log2(motion.sizes)
    steps = np.abs(np.diff(octaves))
    assert np.ptp(octaves) <= OCTAVES + 1e-9
    for sizes in [motion.sizes] + ([motion.distractor[1]] if motion.distractor else []):
        assert sizes.min() >= SMALLEST - 1e-9
        assert sizes.max() <= min(largest, largest_size(FRAME)) + 1e-9
    boxes = motion.boxes()
    assert (boxes[:, :2] >= 2 - 1e-9).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= np.array(FRAME) - 2 + 1e-9).all()
    if kind == "walk":
        assert (steps <= FASTEST + 1e-9).all()
        assert frames == 1 or np.ptp(octaves) > 0
    if kind == "step":
        jumps = steps[steps > 1e-9]
        assert (jumps > JUMP[0] - 1e-9).all()
        assert (jumps < JUMP[1] + 1e-9).all()
        assert frames <= 12 or len(jumps) >= frames // 12
    if kind == "static":
        assert np.ptp(octaves) == 0
        assert frames == 1 or np.ptp(motion.centers) > 0
    if kind == "distractor":
        places, sizes = motion.distractor
        apart = np.abs(np.log2(sizes / motion.sizes))
        assert np.ptp(apart) < 1e-9
        assert APART[0] <= apart[0] <= APART[1] + 1e-9
        gap = np.abs(places[:, 0] - motion.centers[:, 0]) - motion.shape.box[0] * (sizes + motion.sizes) / 2
        assert (gap > 0).all()  # they never touch
    assert (motion.distractor is not None) == (kind == "distractor")


def test_walks_cover_the_octaves():
    spans = [
        np.ptp(np.log2(random_motion("walk", np.random.default_rng(seed), 60, FRAME, 300).sizes)) for seed in range(50)
    ]
    assert np.mean(spans) > 1
    assert max(spans) > 1.7


def groups_of(settings: SequenceSettings) -> tuple[set[str], set[str]]:
    plans = planned(source_images(), settings)
    return {plan.object.group for plan in plans}, {plan.background.group for plan in plans}


@given(seeds=st.tuples(SEEDS, SEEDS))
@effort(max_examples=10)
def test_parts_share_no_source_image(seeds):
    train, test = (
        groups_of(SequenceSettings(part=part, count=100, frames=1, seed=seed))
        for part, seed in zip(("train", "test"), seeds, strict=True)
    )
    assert not (train[0] | train[1]) & (test[0] | test[1])
    assert len(train[0]) > 5


@given(names=st.sets(st.from_regex(r"[a-z]{1,4}(/[a-z]{1,3})?", fullmatch=True), min_size=2), wide=st.integers(0, 99))
def test_groups_are_not_split_between_parts(names, wide):
    images = [
        replace(textures(10)[0], name=name, group=name.split("/")[0], synthetic=False, size=(number % 100,) * 2)
        for number, name in enumerate(sorted(names))
    ]
    train, test = (split(images, part, lambda image: image.size[0] > wide) for part in ("train", "test"))
    assert sorted(names) == sorted(image.name for image in train + test)
    assert not {image.group for image in train} & {image.group for image in test}
    assert train


def test_both_parts_have_photos_and_textures():
    for part in ("train", "test"):
        plans = planned(source_images(), SequenceSettings(part=part, count=100, frames=1))
        for images in ([plan.object for plan in plans], [plan.background for plan in plans]):
            assert {image.synthetic for image in images} == {False, True}
        assert all(plan.object.group != plan.background.group for plan in plans)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoom") / "train"
    assert build(folder, source_images(), SMALL) == SMALL.count
    return folder


def test_sequences_are_in_the_layout_of_otb(rendered):
    sequences = read_sequences(rendered)
    plans = {plan.name: plan for plan in planned(source_images(), SMALL)}
    assert [sequence.name for sequence in sequences] == sorted(plans)
    assert {sequence.name.split("-")[0] for sequence in sequences} == set(KINDS)
    for sequence in sequences:
        assert len(sequence.frames) == SMALL.frames
        assert np.abs(sequence.boxes.numpy() - plans[sequence.name].motion.boxes()).max() <= 0.005 + 1e-9
        assert load_frame(sequence.frames[-1]).shape == (3, 96, 128)


def test_the_note_lists_the_source_images(rendered):
    note = json.loads((rendered / NOTE).read_text())
    plans = planned(source_images(), SMALL)
    assert note["sequences"] == {
        plan.name: {"object": plan.object.name, "background": plan.background.name} for plan in plans
    }
    assert set(note["masters"]) == {plan.object.name for plan in plans} | {plan.background.name for plan in plans}
    assert note["settings"]["seed"] == 0


def test_the_same_seed_gives_the_same_bytes(rendered, tmp_path):
    build(tmp_path / "again", source_images(), SMALL)
    assert contents(tmp_path / "again") == contents(rendered)
    build(tmp_path / "other", source_images(), replace(SMALL, seed=1))
    assert not set(contents(tmp_path / "other").values()) & set(contents(rendered).values())


def test_a_sequence_does_not_depend_on_their_number(rendered, tmp_path):
    build(tmp_path, source_images(), replace(SMALL, count=3))
    few = {name: content for name, content in contents(tmp_path).items() if name != NOTE}
    assert few.items() <= contents(rendered).items()
    assert len(few) == 3 * (SMALL.frames + 1)


def test_only_missing_sequences_are_rendered(rendered, tmp_path):
    out, calls = tmp_path / "part", []
    build(out, source_images(), SMALL)
    before = {name: (out / name).stat().st_mtime_ns for name in contents(out)}
    (out / "step-0002").rename(out / ".step-0002")  # as left by a killed process
    (out / ".step-0002" / "img" / "0002.jpg").write_bytes(b"half")
    (out / ".step-0002" / "img" / "0009.jpg").write_bytes(b"stale")
    assert build(out, source_images(), SMALL, lambda *done: calls.append(done)) == 1
    assert calls == [(SMALL.frames, SMALL.frames)]
    assert contents(out) == contents(rendered)
    again = {name: (out / name).stat().st_mtime_ns for name in contents(out)}
    assert all((again[name] == before[name]) == (not name.startswith("step-0002")) for name in again)
    assert build(out, source_images(), SMALL) == 0


def test_folders_with_other_sequences_are_rejected(rendered, tmp_path):
    with pytest.raises(
        ValueError, match=r"has other sequences: seed 0, not 1, noise 2.0, not 3.0; delete them or choose"
    ):
        build(rendered, source_images(), replace(SMALL, seed=1, noise=3.0))
    with pytest.raises(ValueError, match="cut from other images"):
        build(rendered, source_images()[:4], SMALL)
    for content in ("no note", "[]", '{"settings": 3}'):
        (tmp_path / NOTE).write_text(content)
        with pytest.raises(ValueError, match=r"zoom\.json: damaged or foreign; delete"):
            build(tmp_path, source_images(), SMALL)


@pytest.mark.parametrize("harm", ["frame", "truth"])
def test_modified_sequences_are_rejected(tmp_path, harm):
    few = replace(SMALL, count=1)
    build(tmp_path, source_images(), few)
    if harm == "frame":
        (tmp_path / "walk-0001" / "img" / "0003.jpg").unlink()
    else:
        (tmp_path / "walk-0001" / "groundtruth_rect.txt").write_text("1,1,2,2\n" * 4)
    with pytest.raises(ValueError, match="walk-0001 was modified; delete it to render it again"):
        build(tmp_path, source_images(), few)


CALL = """
from pathlib import Path
from scale_disco.tasks.tracking.data.synthetic import SequenceSettings, build
from scale_disco.tasks.io.textures import source_images
import sys
build(Path(sys.argv[1]), source_images(), SequenceSettings(count=8, frames=4, size=(128, 96), textures=10))
"""


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL")
@pytest.mark.parametrize("after", [1, 5])
def test_a_killed_process_leaves_complete_sequences(rendered, tmp_path, after):
    out = tmp_path / "part"
    process = subprocess.Popen([sys.executable, "-c", CALL, str(out)], env=os.environ | {"OMP_NUM_THREADS": "1"})
    while len(list(out.glob("[!.]*-*"))) < after and process.poll() is None:
        time.sleep(0.001)
    process.kill()
    process.wait()
    for folder in out.glob("[!.]*-*"):
        assert len(list((folder / "img").iterdir())) == SMALL.frames
        assert (folder / "groundtruth_rect.txt").is_file()
    build(out, source_images(), SMALL)
    assert contents(out) == contents(rendered)


def test_a_failure_leaves_no_draft(tmp_path):
    broken = [replace(image, read=lambda: 1 / 0) for image in source_images()]
    with pytest.raises(ZeroDivisionError):
        build(tmp_path, broken, SMALL)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir() and path.name.startswith(".")] == []


def test_png_frames_are_lossless(tmp_path):
    lossless = replace(SMALL, count=1, suffix=".png")
    build(tmp_path, source_images(), lossless)
    plan = planned(source_images(), lossless)[0]
    renderer = SequenceRenderer(plan, lossless, lambda image: image.read())
    for number in range(lossless.frames):
        frame = load_frame(tmp_path / plan.name / "img" / f"{number + 1:04d}.png")
        assert (frame.permute(1, 2, 0).numpy() == renderer.frame(number)).all()


@pytest.mark.parametrize("number", range(8))
def test_only_the_object_differs_from_the_background(number):
    """Without noise, light and camera motion, pixels outside of all boxes are constant."""
    still = replace(SMALL, size=FRAME, light=0.0, noise=0.0, suffix=".png")
    plan = planned(source_images(), still)[number]
    renderer = SequenceRenderer(plan, still, lambda image: image.read())
    renderer.pan[:] = renderer.pan[0]
    frames = np.stack([renderer.frame(index) for index in range(still.frames)]).astype(int)
    near = np.zeros(frames.shape[1:3], bool)
    boxes = [plan.motion.boxes()]
    if plan.motion.distractor is not None:
        boxes.append(plan.motion._replace(centers=plan.motion.distractor[0], sizes=plan.motion.distractor[1]).boxes())
    for left, top, width, height in np.concatenate(boxes):
        near[int(top - 1) : int(top + height + 2), int(left - 1) : int(left + width + 2)] = True
    assert (np.ptp(frames, 0)[~near] == 0).all()
    assert np.ptp(frames, 0)[near].any()


def test_objects_have_the_colors_of_their_background():
    wide = replace(SMALL, size=FRAME, count=60)
    apart = []
    for plan in planned(source_images(), wide):
        renderer = SequenceRenderer(plan, wide, lambda image: image.read())
        texture, canvas = (
            np.asarray(image, float).mean((0, 1)) for image in (renderer.sprite.texture, renderer.canvas)
        )
        apart.append(np.abs(texture - canvas).max())
        shown = max(plan.motion.sizes.max(), plan.motion.distractor[1].max() if plan.motion.distractor else 0)
        assert renderer.sprite.side >= shown - 1e-9  # never enlarged
    assert np.median(apart) < 15


@pytest.mark.parametrize(
    ("invalid", "message"),
    [
        ({"part": "val"}, "part must be train or test, got 'val'"),
        ({"count": 0}, "count must be at least 1, got 0"),
        ({"frames": -1}, "frames must be at least 1, got -1"),
        ({"size": (118, 300)}, "frames must be at least 119 x 89 pixels, got 118 x 300"),
        ({"size": (300, 88)}, "frames must be at least 119 x 89 pixels, got 300 x 88"),
        ({"suffix": ".gif"}, r"suffix must be \.jpg or \.png, got '\.gif'"),
        ({"textures": 9}, "textures must be at least 10, got 9"),
        ({"noise": -1.0}, "noise below 128"),
        ({"light": 0.5}, "light must be below 0.5"),
    ],
)
def test_invalid_settings_raise(invalid, message):
    SequenceSettings(size=(119, 89))
    with pytest.raises(ValueError, match=message):
        SequenceSettings(**invalid)


def write_image(path: Path, size: tuple[int, int] = (200, 150), mode: str = "RGB", seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)
    return path


def test_images_of_a_folder_are_grouped_and_deduplicated(tmp_path):
    for number, mode in enumerate(["RGB", "L", "RGBA", "P", "CMYK", "1"]):
        suffix = ".jpg" if mode == "CMYK" else ".png"
        write_image(tmp_path / f"{mode}{suffix}", mode=mode, seed=number)
    write_image(tmp_path / "street" / "deep" / "one.JPG", (1500, 700), seed=10)
    write_image(tmp_path / "street" / "two.jpg", seed=11)
    write_image(tmp_path / ".hidden.png", seed=12)
    (tmp_path / "read.me").write_text("not an image")
    (tmp_path / "street" / "copy.jpg").write_bytes((tmp_path / "street" / "two.jpg").read_bytes())
    images = {image.name: image for image in source_images(tmp_path)}
    assert set(images) == {
        "RGB.png", "L.png", "RGBA.png", "P.png", "CMYK.jpg", "1.png", "street/deep/one.JPG", "street/copy.jpg"
    }  # fmt: skip
    assert images["street/deep/one.JPG"].group == images["street/copy.jpg"].group == "street"
    assert images["L.png"].group == "L.png"
    for source in images.values():
        image = source.read()
        assert image.mode == "RGB"
        assert image.size == source.size
    assert images["street/deep/one.JPG"].size == (1024, 478)
    assert build(tmp_path / "out", list(images.values()), SMALL) == SMALL.count


def test_images_are_rotated_by_their_exif_orientation(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    Image.new("RGB", (200, 100)).save(tmp_path / "a.jpg", exif=exif)
    assert source_images(tmp_path)[0].size == (100, 200)


def test_small_images_are_skipped_with_a_warning(tmp_path):
    write_image(tmp_path / "tiny.png", (500, SHORTEST - 1))
    with pytest.raises(ValueError, match=r"every image in .* has a side of less than 64 pixels"):
        source_images(tmp_path)
    write_image(tmp_path / "small.png", (SHORTEST, SHORTEST))
    with pytest.warns(UserWarning, match=r"skipped, with a side of less than 64 pixels: tiny\.png in"):
        small = source_images(tmp_path)
    assert [image.name for image in small] == ["small.png"]
    assert build(tmp_path / "out", small, SMALL) == SMALL.count


def test_unreadable_images_are_named(tmp_path):
    whole = write_image(tmp_path / "0.png").read_bytes()
    for number in range(1, 5):
        (tmp_path / f"{number}.png").write_bytes(whole[: 100 * number])
    Image.fromarray(np.zeros((99, 99), np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(ValueError, match=r"cannot read .*1\.png: .*3\.png: .* and 2 more; fix or remove them") as error:
        source_images(tmp_path)
    assert "\n" not in str(error.value)


def test_folders_without_images_raise(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no images in .* \(looked for \.bmp, "):
        source_images(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no folder .*missing"):
        source_images(tmp_path / "missing")


def test_textures_are_distinct_and_reproducible():
    first, again = ([np.asarray(image.read()) for image in textures(count)[:6]] for count in (6, 10))
    for number, image in enumerate(first):
        assert image.shape == (512, 512, 3)
        assert (image == again[number]).all()
        assert 15 < image.std() < 90
        assert all((image != other).mean() > 0.9 for other in first[:number])


def test_real_photos_are_rendered(shared, tmp_path):
    images = source_images(shared / "data" / "photos")
    settings = SequenceSettings(part="test", count=4, frames=3)
    assert build(tmp_path, images, settings) == 4
    assert len(read_sequences(tmp_path)) == 4
