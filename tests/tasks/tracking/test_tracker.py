"""Trackers: inputs, outputs, the loop, and that they follow an object that moves and changes in scale."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F

from scale_disco.models import create_model
from scale_disco.tasks.io.samples import photos
from scale_disco.tasks.io.video import Frame
from scale_disco.tasks.tracking.crop import crops, mean_color
from scale_disco.tasks.tracking.tracker import (
    _CALIBRATION,
    MODES,
    MOTIONS,
    MotionParameters,
    SiameseTracker,
    StaticBoxTracker,
    track,
)
from tests.conftest import tiered

FRAME = torch.randint(0, 256, (3, 90, 120), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
BOX = (40.0, 30.0, 24.0, 18.0)


@pytest.fixture(scope="module")
def networks(shared_weights):
    return {name: create_model(f"track/{name}", pretrained=shared_weights).eval() for name in ("siamfc+", "disco")}


@pytest.fixture(scope="module")
def random_networks():
    torch.manual_seed(0)
    return {name: create_model(f"track/{name}").eval() for name in ("siamfc+", "se-siamfc+", "disco")}


@pytest.fixture(scope="module")
def shared_weights():
    from tests.conftest import SHARED

    weights = SHARED / "data" / "resnet50" / "resnet50_caffe_fp16.safetensors"
    if not weights.is_file():
        pytest.skip("no ImageNet weights in ../shared/data/resnet50")
    return weights


def video(octaves, shifts, *, size=(180, 240), middle=(120.0, 90.0)):
    """Frames with the middle of a photo, of 40 pixels at octave 0, pasted over another photo; and its boxes."""
    pasted = (photos()[3] * 255).byte().expand(3, -1, -1)
    background = F.interpolate(photos()[0:1], size, mode="bicubic")[0].clamp(0, 1).mul(255).byte().expand(3, -1, -1)
    frames, boxes = [], []
    for octave, (right, down) in zip(octaves, shifts, strict=True):
        side = round(40 * 2**octave)
        crop = crops(pasted, torch.tensor([[80.0, 80.0]]), torch.tensor([120.0]), side, mean_color(pasted))[0]
        x, y = round(middle[0] + right - side / 2), round(middle[1] + down - side / 2)
        frame = background.clone()
        frame[:, y : y + side, x : x + side] = crop.round().byte()
        frames.append(frame)
        boxes.append((float(x), float(y), float(side), float(side)))
    return frames, boxes


def track_boxes(tracker, frames, boxes):
    tracker.init(frames[0], boxes[0])
    return [tracker.update(frame).box for frame in frames[1:]]


def center(box):
    return box[0] + box[2] / 2, box[1] + box[3] / 2


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("siamfc+", "pyramid"),
        ("siamfc+", "fixed"),
        pytest.param("disco", "pyramid", marks=pytest.mark.thorough),
        ("disco", "axis"),
    ],
)
def test_moving_objects_are_followed(networks, name, mode):
    frames, boxes = video([0] * 6, [(4 * k, -3 * k) for k in range(6)])
    predictions = track_boxes(SiameseTracker(networks[name], mode), frames, boxes)
    for box, truth in zip(predictions, boxes[1:], strict=True):
        assert math.dist(center(box), center(truth)) < 6


@pytest.mark.parametrize("sign", tiered([1, -1], lambda sign: sign == 1))
def test_one_crop_estimates_the_scale_change(networks, sign):
    """One octave in ten frames, up and down: the mean error is about a tenth of an octave."""
    octaves = [0.1 * sign * k for k in range(11)]
    frames, boxes = video(octaves, [(0, 0)] * 11)
    tracker = SiameseTracker(networks["disco"], "axis")
    predictions = track_boxes(tracker, frames, boxes)
    errors = [abs(math.log2(box[2] / truth[2])) for box, truth in zip(predictions, boxes[1:], strict=True)]
    assert sum(errors) / len(errors) < 0.12
    assert math.log2(tracker.scale) == pytest.approx(sign, abs=0.25)


def test_fixed_mode_keeps_the_scale(networks):
    frames, boxes = video([0, 0.2, 0.4], [(0, 0)] * 3)
    tracker = SiameseTracker(networks["disco"], "fixed")
    assert [box[2:] for box in track_boxes(tracker, frames, boxes)] == [pytest.approx(boxes[0][2:])] * 2
    assert tracker.scale == 1


def test_vanished_objects_are_lost(networks):
    frames, boxes = video([0] * 3, [(0, 0)] * 3)
    for name in ("siamfc+", "disco"):
        tracker = SiameseTracker(networks[name])
        track_boxes(tracker, frames, boxes)
        assert not tracker.lost
        before = tracker.scale
        tracker.update(torch.full_like(frames[0], 90))
        assert tracker.lost
        assert tracker.scale == before  # a lost object does not change the scale
        tracker.init(frames[0], boxes[0])
        assert not tracker.lost
        assert tracker.scale == 1


def test_scale_changes_are_interpolated_between_calibrated_ones(random_networks):
    tracker = SiameseTracker(random_networks["disco"], "axis")
    tracker.responses = [-0.4, -0.1, 0.0, 0.2, 0.2]
    expected = {-1: -0.5, -0.4: -0.5, -0.25: -0.375, -0.1: -0.25, 0.1: 0.125, 0.2: 0.25, 0.3: 0.5}
    for response, octaves in expected.items():
        assert tracker._octaves(response) == pytest.approx(octaves)
    assert _CALIBRATION[2] == 0


@pytest.mark.parametrize("name", tiered(["siamfc+", "se-siamfc+", "disco"], lambda name: name == "siamfc+"))
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_returns_deterministic_boxes(random_networks, name, mode):
    if name == "siamfc+" and mode == "axis":
        with pytest.raises(ValueError, match='"axis" needs a network with scales'):
            SiameseTracker(random_networks[name], mode)
        return
    tracker = SiameseTracker(random_networks[name], mode)
    tracker.init(FRAME, BOX)
    for _ in range(2):
        box, score = tracker.update(FRAME)
        assert all(map(math.isfinite, (*box, score)))
        assert box[2] > 0
        assert box[3] > 0
    repeated = SiameseTracker(random_networks[name], mode)
    repeated.init(FRAME, BOX)
    repeated.update(FRAME)
    assert repeated.update(FRAME).box == box


def test_the_network_is_not_modified(random_networks):
    network = create_model("track/siamfc+").train()
    SiameseTracker(network)
    assert network.training
    assert type(network.features.bn1) is torch.nn.BatchNorm2d


@pytest.mark.parametrize(
    "box",
    tiered(
        [(-10.0, -10.0, 30.0, 30.0), (110.0, 80.0, 60.0, 60.0), (3.0, 3.0, 1.0, 1.0), (0.0, 0.0, 120.0, 90.0)],
        lambda box: box[0] < 0,
    ),
)
def test_boxes_at_the_border_and_of_any_size_are_tracked(random_networks, box):
    tracker = SiameseTracker(random_networks["disco"])
    tracker.init(FRAME, box)
    updated = tracker.update(FRAME).box
    assert all(map(math.isfinite, updated))
    x, y = center(updated)
    assert 0 <= x <= 120
    assert 0 <= y <= 90


@pytest.mark.parametrize("tracker", [StaticBoxTracker(), None], ids=["static-box", "siamese"])
@pytest.mark.parametrize(
    ("box", "message"),
    [
        ((0, 0, 0, 5), "w and h above 0"),
        ((0, 0, 5, -1), "w and h above 0"),
        ((math.nan, 0, 5, 5), "finite numbers"),
        ((0, math.inf, 5, 5), "finite numbers"),
        ((0, 0, 5), "x, y, w, h"),
        ((121, 0, 5, 5), "outside of the frame of 120 x 90"),
        ((0, 0, 1e30, 5), "more than 100 times as large as the frame"),
        ((-9, 0, 5, 5), "outside of the frame"),
        ((0, -5, 5, 5), "outside of the frame"),
    ],
)
def test_invalid_boxes_are_rejected(random_networks, tracker, box, message):
    tracker = tracker or SiameseTracker(random_networks["siamfc+"])
    with pytest.raises(ValueError, match=message) as error:
        tracker.init(FRAME, box)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "frame", [FRAME.float(), FRAME[0], FRAME[:1], FRAME[:, :0]], ids=["float", "2-D", "gray", "empty"]
)
def test_invalid_frames_are_rejected(random_networks, frame):
    tracker = SiameseTracker(random_networks["siamfc+"])
    for call in (lambda: tracker.init(frame, BOX), lambda: StaticBoxTracker().init(frame, BOX)):
        with pytest.raises(ValueError, match="expected a frame uint8"):
            call()
    tracker.init(FRAME, BOX)
    with pytest.raises(ValueError, match="expected a frame uint8"):
        tracker.update(frame)


def test_the_offset_of_scores_does_not_matter():
    """It is for training; the scale penalty is a factor on scores without it."""
    torch.manual_seed(0)
    network = create_model("track/siamfc+").eval()
    boxes = []
    for offset in (0.0, -1e4):
        network.offset.fill_(offset)
        tracker = SiameseTracker(network, "pyramid", MotionParameters(step=1.2, penalty=0.5))
        tracker.init(FRAME, BOX)
        boxes.append(tracker.update(FRAME).box)
        assert tracker.scale == 1  # the penalty halves scores of other scales
    assert boxes[0] == pytest.approx(boxes[1], abs=0.6)


def test_objects_without_texture_keep_their_scale(networks):
    """All magnifications have the same response, and calibration accounts for it."""
    flat = torch.full((3, 90, 120), 90, dtype=torch.uint8)
    tracker = SiameseTracker(networks["disco"], "axis")
    tracker.init(flat, BOX)
    for _ in range(3):
        tracker.update(flat)
    assert tracker.scale == pytest.approx(1, abs=0.01)
    assert tracker.responses == sorted(tracker.responses)


def test_damaged_weights_raise():
    network = create_model("track/siamfc+").eval()
    network.features.conv1.weight.data.fill_(math.nan)
    tracker = SiameseTracker(network)
    tracker.init(FRAME, BOX)
    with pytest.raises(ValueError, match="non-finite scores: the weights of the network are damaged"):
        tracker.update(FRAME)


def test_update_before_init_raises(random_networks):
    with pytest.raises(ValueError, match="update was called before init"):
        SiameseTracker(random_networks["siamfc+"]).update(FRAME)


def test_invalid_modes_and_motion_parameters_are_rejected(random_networks):
    with pytest.raises(ValueError, match="mode must be one of pyramid, axis, fixed, got 'zoom'"):
        SiameseTracker(random_networks["disco"], "zoom")
    with pytest.raises(ValueError, match=r"rate must be from 0 to 1, got 1\.5"):
        MotionParameters(rate=1.5)
    assert MOTIONS["se-siamfc+-otb2013"].step == 1.145


def test_unreadable_frames_keep_the_box_and_are_lost():
    frames = [Frame(number, None if number == 1 else FRAME, Fraction(number)) for number in range(3)]
    first, unreadable, last = track(StaticBoxTracker(), frames, BOX)
    assert [tracked.frame.number for tracked in (first, unreadable, last)] == [0, 1, 2]
    assert (first.score, first.lost, unreadable.lost, last.lost) == (1.0, False, True, False)
    assert math.isnan(unreadable.score)
    assert (unreadable.box, unreadable.seconds) == (first.box, 0)
    assert unreadable.image is first.image
    with pytest.raises(ValueError, match="the first frame cannot be read"):
        next(track(StaticBoxTracker(), frames[1:], BOX))
