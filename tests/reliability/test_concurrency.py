"""Processes that write to the same place concurrently: one valid result, and one line for those refused."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from scale_disco import Basis, DiscreteBasis
from scale_disco.hub import ScaleHubMixin
from scale_disco.nn import ScaleLift2d
from scale_disco.tasks.mnist_scale.data import load
from scale_disco.tasks.scene.commands.outputs import Job, jobs_of
from scale_disco.tasks.scene.copies import Sizes, find, read_copies
from scale_disco.tasks.stl10.folder import read_folder
from scale_disco.tasks.tracking.data.sequences import read_sequences
from scale_disco.tasks.tracking.results import read_result
from tests.reliability.concurrency import ProcessPool, disco
from tests.tasks.scene.test_copies import Means
from tests.tasks.tracking.video_files import write_video
from tests.tasks.tracking.videos import write_videos

for extra in ("av", "huggingface_hub", "lightning", "mlxtend"):
    pytest.importorskip(extra, reason='all commands need "scale-disco[all]"')

AT_WORK = "another process is at work in it"
SAVES = 40  # by each writer, while others read


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def pool(request):
    pool = ProcessPool(request.param)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    assert disco("data", "mnist-scale", "--split", "mini", "--out", folder) == (0, "")
    return folder


@pytest.fixture
def images(tmp_path):
    """A folder of twelve images of noise, in two classes, for training and testing."""
    for number in range(12):
        folder = tmp_path / "images" / ("test" if number % 3 == 0 else "train") / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 255, (96, 96, 3), np.uint8)
        Image.fromarray(noise).save(folder / f"{number}.png")
    return tmp_path / "images"


def file_bytes(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_all_succeed(results):
    assert {code for code, _ in results} == {0}, results


def refusals(results, *reasons):
    """Count the processes that were refused, and check that each says why in one line."""
    refused = [stderr for code, stderr in results if code]
    assert {code for code, _ in results} <= {0, 1}, results
    assert len(refused) < len(results), results
    for stderr in refused:
        assert stderr.count("\n") == 1, stderr
        assert any(reason in stderr for reason in reasons), stderr
    return len(refused)


def test_data_set_is_written_by_several_processes(pool, data, tmp_path):
    assert_all_succeed(pool.all(disco, "data", "mnist-scale", "--split", "mini", "--out", tmp_path))
    assert list(file_bytes(tmp_path)) == ["mnist-scale-mini.npz"]
    actual, expected = (load(folder, "mini") for folder in (tmp_path, data))  # bytes differ by the date
    assert all(map(np.array_equal, sum(actual.values(), ()), sum(expected.values(), ())))


def test_sequences_are_written_by_one_process(pool, tmp_path):
    arguments = ["data", "zoom", "--size", "128x96", "--count", 3, "--frames", 6, "--test-count", 2, "--test-frames", 4]
    refusals(pool.all(disco, *arguments, "--out", tmp_path / "concurrent"), AT_WORK)
    for name in ("concurrent", "alone"):
        assert disco(*arguments, "--out", tmp_path / name) == (0, "")
    assert file_bytes(tmp_path / "concurrent") == file_bytes(tmp_path / "alone")


def read_cached(folder, cache):
    return {part: dataset.images.tobytes() for part, dataset in read_folder(folder, 64, cache=cache).items()}


def test_images_are_read_into_one_cache(pool, images, tmp_path):
    results = pool.all(read_cached, images, tmp_path / "cache.safetensors")
    assert results == [read_cached(images, None)] * len(results)
    assert read_cached(images, tmp_path / "cache.safetensors") == results[0]
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["cache.safetensors"]


def profiles(folder, cache):
    copies = read_copies(Means(), find(folder), Sizes(copies=3, windows=4), cache=cache)
    return [copy.profiles.numpy().tobytes() for copy in copies]


def test_copies_are_read_into_one_cache(pool, images, tmp_path):
    results = pool.all(profiles, images, tmp_path / "cache")
    assert results == [profiles(images, None)] * len(results)
    assert profiles(images, tmp_path / "cache") == results[0]
    assert len(list((tmp_path / "cache").iterdir())) == 12


@contextmanager
def signal_end(path, number):
    """Tell readers that a writer has ended, with or without an error."""
    try:
        yield
    finally:
        (path.parent / f"done-{number}").touch()


def save_basis(path, writer):
    with signal_end(path, writer):
        for number in range(SAVES):
            DiscreteBasis(3, [1, 2 + 2 * ((number + writer) % 2)]).save(path)


def load_basis(path):
    """Read until a writer ends; return the number of reads."""
    reads = 0
    while not reads or not list(path.parent.glob("done-*")):
        assert Basis.load(path).scales[1] in (2, 4)
        reads += 1
    return reads


def test_basis_is_read_while_it_is_written(pool, tmp_path, record_figures):
    path = tmp_path / "basis.safetensors"
    DiscreteBasis(3, [1, 2]).save(path)
    writers = len(pool.processes) // 2
    jobs = [(save_basis, (path, writer)) for writer in range(writers)] + [(load_basis, (path,))] * writers
    reads = pool(*jobs)[writers:]
    record_figures("concurrency", "basis", processes=2 * writers, saves=SAVES * writers, reads=sum(reads))
    assert min(reads) >= 1
    assert {path.name for path in tmp_path.iterdir()} == {path.name, *(f"done-{writer}" for writer in range(writers))}


class LabeledNetwork(nn.Module, ScaleHubMixin):
    """Its weights follow from its config: width and label."""

    def __init__(self, width: int, basis: Basis, label: str) -> None:
        super().__init__()
        self.lift, self.label = ScaleLift2d(1, width, basis), label
        nn.init.constant_(self.lift.weight, width + len(label) / 10)

    def is_consistent(self):
        return bool((self.lift.weight == torch.tensor(self.lift.weight.shape[0] + len(self.label) / 10)).all())


def save_network(folder, writer):
    """Save three networks in turn; return the number of refusals."""
    refused = 0
    with signal_end(folder, writer):
        for number in range(SAVES):
            turn = (number + writer) % 3
            try:
                LabeledNetwork((2, 2, 5)[turn], DiscreteBasis(3, [1, 2]), "ab"[: 1 + turn % 2]).save_pretrained(folder)
            except BlockingIOError:
                refused += 1
    return refused


def load_network(folder):
    """Read until a writer ends; return the number of networks read."""
    reads = 0
    while not reads or not list(folder.parent.glob("done-*")):
        try:
            network = LabeledNetwork.from_pretrained(folder)
        except FileNotFoundError:  # the config is replaced at this moment
            continue
        except ValueError as error:
            if "was written while it was read: try again" not in str(error):
                raise
        else:
            assert network.is_consistent()
            reads += 1
    return reads


def test_network_is_read_while_it_is_written(pool, tmp_path, record_figures):
    """A reader gets a network as it was saved or is told to try again, never weights with another config."""
    folder = tmp_path / "network"
    LabeledNetwork(2, DiscreteBasis(3, [1, 2]), "a").save_pretrained(folder)
    writers = len(pool.processes) // 2
    jobs = [(save_network, (folder, writer)) for writer in range(writers)] + [(load_network, (folder,))] * writers
    reads = pool(*jobs)[writers:]
    record_figures("concurrency", "network", processes=2 * writers, saves=SAVES * writers, reads=sum(reads))
    assert min(reads) >= 1
    assert LabeledNetwork.from_pretrained(folder).is_consistent()
    assert not list(folder.glob(".*"))


def test_network_is_not_saved_during_another_save(tmp_path, monkeypatch):
    """When the weights of the other are in place and its config is not."""
    folder, replace, attempts = tmp_path / "network", Path.replace, []

    def meanwhile(draft, target):
        if target.name == "config.json":
            attempts.append(target)
            with pytest.raises(BlockingIOError, match=AT_WORK):
                LabeledNetwork(5, DiscreteBasis(3, [1, 2]), "ab").save_pretrained(folder)
        return replace(draft, target)

    monkeypatch.setattr(Path, "replace", meanwhile)
    LabeledNetwork(2, DiscreteBasis(3, [1, 2]), "a").save_pretrained(folder)
    assert len(attempts) == 1
    assert LabeledNetwork.from_pretrained(folder).is_consistent()


def training(data, out):
    options = ["--split", "mini", "--limit", 96, "--recipe", "quick", "--epochs", 2, "--model", "digits/cnn"]
    return ["train", "mnist-scale", "--data", data, *options, "--threads", 1, "--out", out]


def weights(run):
    return torch.load(run / "last.ckpt", weights_only=True)["state_dict"]


def test_training_is_started_once(pool, data, tmp_path):
    results = pool.all(disco, *training(data, tmp_path / "concurrent"))
    assert refusals(results, AT_WORK, "already holds a run") == len(results) - 1
    assert disco(*training(data, tmp_path / "alone")) == (0, "")
    actual, expected = weights(tmp_path / "concurrent"), weights(tmp_path / "alone")
    assert all(torch.equal(actual[name], expected[name]) for name in expected)
    best = [load_file(tmp_path / name / "best.safetensors") for name in ("concurrent", "alone")]
    assert all(torch.equal(best[0][name], best[1][name]) for name in best[1])


def test_run_is_tested_by_several_processes(pool, data, tmp_path):
    assert disco(*training(data, tmp_path / "concurrent")) == (0, "")
    shutil.copytree(tmp_path / "concurrent", tmp_path / "alone")
    assert_all_succeed(pool.all(disco, "test", tmp_path / "concurrent", "--outside", 20))
    for name in ("concurrent", "alone"):
        assert disco("test", tmp_path / name, "--outside", 20) == (0, "")
    actual, expected = (json.loads((tmp_path / name / "test.json").read_text()) for name in ("concurrent", "alone"))
    assert actual | {"seconds": 0} == expected | {"seconds": 0}
    caches = [(tmp_path / name / "answers-last.npz").read_bytes() for name in ("concurrent", "alone")]
    assert caches[0] == caches[1]


def test_tracker_is_evaluated_by_one_process(pool, tmp_path):
    videos = write_videos(tmp_path / "videos", 4)
    arguments = ["otb", videos, "--tracker", "static-box", "--results", tmp_path / "results"]
    refusals(pool.all(disco, *arguments), AT_WORK)
    assert disco(*arguments) == (0, "")
    for sequence in read_sequences(videos):
        boxes = read_result(tmp_path / "results" / "static-box", sequence).boxes
        assert torch.equal(boxes, boxes[:1].expand_as(boxes))


def test_object_is_tracked_by_several_processes(pool, tmp_path):
    video = write_video(tmp_path / "video.mp4", 12)
    assert_all_succeed(
        pool.all(disco, "track", video, "--box", "4,12,8,8", "--tracker", "static-box", "--out", tmp_path / "track")
    )
    assert sorted(file_bytes(tmp_path / "track")) == ["track.csv", "track.mp4"]
    assert (tmp_path / "track" / "track.csv").read_text().count("\n") == 13


def scene_command(*arguments):
    """Run `disco scene` with a small network."""
    from scale_disco.tasks.scene.commands import scene
    from tests.tasks.scene.estimators import Waves

    scene.open_estimator = lambda options: Waves()
    return disco("scene", *arguments)


def test_fields_are_written_by_several_processes(pool, images, tmp_path):
    folder = images / "train" / "cat"
    assert_all_succeed(pool.all(scene_command, folder, "--out", tmp_path / "concurrent", "--no-figure"))
    pool((scene_command, (folder, "--out", tmp_path / "alone", "--no-figure")))
    actual, expected = file_bytes(tmp_path / "concurrent"), file_bytes(tmp_path / "alone")
    assert actual.keys() == expected.keys()
    assert all(actual[name] == expected[name] for name in actual if not name.endswith(".json"))


def test_output_name_taken_by_another_process_for_the_same_image(images, tmp_path, monkeypatch):
    """Between two reads of the folder."""
    path = images / "train" / "cat" / "1.png"
    note = Job.note

    def take_name(job):
        before = note(job)
        if job.name == "1":
            job.write_note({"source": path.name, "complete": False}, {})
            job.file(".npy").touch()
        return before

    monkeypatch.setattr(Job, "note", take_name)
    assert [job.name for job in jobs_of([path], tmp_path, video=False)] == ["1"]
