"""Several processes that write to the same place at once: one valid result, and a line for whoever is refused."""

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
from tests.reliability.concurrency import Crew, disco
from tests.tasks.scene.test_copies import Means
from tests.tasks.tracking.video_files import write_video
from tests.tasks.tracking.videos import write_videos

for extra in ("av", "huggingface_hub", "lightning", "mlxtend"):
    pytest.importorskip(extra, reason='what is written by all commands needs "scale-disco[all]"')

AT_WORK = "another process is at work in it"
SAVED = 40  # times, while others read


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def crew(request):
    """So many processes."""
    crew = Crew(request.param)
    yield crew
    crew.end()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    assert disco("data", "mnist-scale", "--split", "mini", "--out", folder) == (0, "")
    return folder


@pytest.fixture
def pictures(tmp_path):
    """Six of noise, in two classes and parts."""
    for number in range(12):
        folder = tmp_path / "pictures" / ("test" if number % 3 == 0 else "train") / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 255, (96, 96, 3), np.uint8)
        Image.fromarray(noise).save(folder / f"{number}.png")
    return tmp_path / "pictures"


def files(folder):
    """All that is below a folder, as bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def all_done(ends):
    assert {code for code, _ in ends} == {0}, ends


def refused_or_done(ends, *words):
    """Whoever was refused was told why in one line; how many that were."""
    refused = [said for code, said in ends if code]
    assert {code for code, _ in ends} <= {0, 1}, ends
    assert len(refused) < len(ends), ends
    for said in refused:
        assert said.count("\n") == 1, said
        assert any(word in said for word in words), said
    return len(refused)


def test_a_data_set_is_made(crew, data, tmp_path):
    all_done(crew.all(disco, "data", "mnist-scale", "--split", "mini", "--out", tmp_path))
    assert list(files(tmp_path)) == ["mnist-scale-mini.npz"]
    mine, theirs = (load(folder, "mini") for folder in (tmp_path, data))  # bytes, but for the date in a note
    assert all(map(np.array_equal, sum(mine.values(), ()), sum(theirs.values(), ())))


def test_videos_are_made(crew, tmp_path):
    words = ["data", "zoom", "--size", "128x96", "--count", 3, "--frames", 6, "--test-count", 2, "--test-frames", 4]
    refused_or_done(crew.all(disco, *words, "--out", tmp_path / "together"), AT_WORK)
    for name in ("together", "alone"):
        assert disco(*words, "--out", tmp_path / name) == (0, "")
    assert files(tmp_path / "together") == files(tmp_path / "alone")


def read_cached(folder, cache):
    return {part: found.images.tobytes() for part, found in read_folder(folder, 64, cache=cache).items()}


def test_pictures_are_read_into_one_cache(crew, pictures, tmp_path):
    found = crew.all(read_cached, pictures, tmp_path / "cache.safetensors")
    assert found == [read_cached(pictures, None)] * len(found)
    assert read_cached(pictures, tmp_path / "cache.safetensors") == found[0]
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["cache.safetensors"]


def see(folder, cache):
    copies = read_copies(Means(), find(folder), Sizes(copies=3, windows=4), cache=cache)
    return [one.profiles.numpy().tobytes() for one in copies]


def test_copies_are_seen_into_one_cache(crew, pictures, tmp_path):
    found = crew.all(see, pictures, tmp_path / "cache")
    assert found == [see(pictures, None)] * len(found)
    assert see(pictures, tmp_path / "cache") == found[0]
    assert len(list((tmp_path / "cache").iterdir())) == 12


@contextmanager
def done(path, number):
    """Let those who read know when a writer has ended, well or not."""
    try:
        yield
    finally:
        (path.parent / f"done-{number}").touch()


def save_basis(path, odd):
    with done(path, odd):
        for number in range(SAVED):
            DiscreteBasis(3, [1, 2 + 2 * ((number + odd) % 2)]).save(path)


def load_basis(path):
    """Read until the others are done; how often."""
    seen = 0
    while not seen or not list(path.parent.glob("done-*")):
        assert Basis.load(path).scales[1] in (2, 4)
        seen += 1
    return seen


def test_a_basis_is_read_while_it_is_written(crew, tmp_path, note):
    path = tmp_path / "basis.safetensors"
    DiscreteBasis(3, [1, 2]).save(path)
    writers = len(crew.processes) // 2
    jobs = [(save_basis, (path, odd)) for odd in range(writers)] + [(load_basis, (path,))] * writers
    found = crew(*jobs)[writers:]
    note("together", "basis", processes=2 * writers, saved=SAVED * writers, read=sum(found))
    assert min(found) >= 1
    assert {path.name for path in tmp_path.iterdir()} == {path.name, *(f"done-{odd}" for odd in range(writers))}


class Wide(nn.Module, ScaleHubMixin):
    """Its weights tell its width and what it was called."""

    def __init__(self, width: int, basis: Basis, called: str) -> None:
        super().__init__()
        self.lift, self.called = ScaleLift2d(1, width, basis), called
        nn.init.constant_(self.lift.weight, width + len(called) / 10)

    def is_whole(self):
        return bool((self.lift.weight == torch.tensor(self.lift.weight.shape[0] + len(self.called) / 10)).all())


def save_network(folder, odd):
    """Save networks by turns; how often that was refused."""
    refused = 0
    with done(folder, odd):
        for number in range(SAVED):
            turn = (number + odd) % 3
            try:
                Wide((2, 2, 5)[turn], DiscreteBasis(3, [1, 2]), "ab"[: 1 + turn % 2]).save_pretrained(folder)
            except BlockingIOError:
                refused += 1
    return refused


def load_network(folder):
    """Read until the others are done; how often that gave a network."""
    seen = 0
    while not list(folder.parent.glob("done-*")):
        try:
            network = Wide.from_pretrained(folder)
        except FileNotFoundError:  # the config is away for a moment
            continue
        except ValueError as error:
            if "was written while it was read: try again" not in str(error):
                raise
        else:
            assert network.is_whole()
            seen += 1
    return seen


def test_a_network_is_read_while_it_is_written(crew, tmp_path, note):
    """A reader sees a network as it was saved or is told to try again, never weights beside another's config."""
    folder = tmp_path / "network"
    Wide(2, DiscreteBasis(3, [1, 2]), "a").save_pretrained(folder)
    writers = len(crew.processes) // 2
    found = crew(*[(save_network, (folder, odd)) for odd in range(writers)], *[(load_network, (folder,))] * writers)
    note("together", "network", processes=2 * writers, saved=SAVED * writers, read=sum(found[writers:]))
    assert min(found[writers:]) >= 1
    assert Wide.from_pretrained(folder).is_whole()
    assert not list(folder.glob(".*"))


def test_a_network_is_saved_in_the_middle_of_another(tmp_path, monkeypatch):
    """When its weights are in place and its config is not."""
    folder, replace, asked = tmp_path / "network", Path.replace, []

    def meanwhile(draft, target):
        if target.name == "config.json":
            asked.append(target)
            with pytest.raises(BlockingIOError, match=AT_WORK):
                Wide(5, DiscreteBasis(3, [1, 2]), "ab").save_pretrained(folder)
        return replace(draft, target)

    monkeypatch.setattr(Path, "replace", meanwhile)
    Wide(2, DiscreteBasis(3, [1, 2]), "a").save_pretrained(folder)
    assert len(asked) == 1
    assert Wide.from_pretrained(folder).is_whole()


def training(data, out):
    words = ["--split", "mini", "--limit", 96, "--recipe", "quick", "--epochs", 2, "--model", "digits/cnn"]
    return ["train", "mnist-scale", "--data", data, *words, "--threads", 1, "--out", out]


def weights(run):
    return torch.load(run / "last.ckpt", weights_only=True)["state_dict"]


def test_a_training_is_begun_once(crew, data, tmp_path):
    ends = crew.all(disco, *training(data, tmp_path / "together"))
    assert refused_or_done(ends, AT_WORK, "holds a run already") == len(ends) - 1
    assert disco(*training(data, tmp_path / "alone")) == (0, "")
    mine, theirs = weights(tmp_path / "together"), weights(tmp_path / "alone")
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    best = [load_file(tmp_path / name / "best.safetensors") for name in ("together", "alone")]
    assert all(torch.equal(best[0][name], best[1][name]) for name in best[1])


def test_a_run_is_tested(crew, data, tmp_path):
    assert disco(*training(data, tmp_path / "together")) == (0, "")
    shutil.copytree(tmp_path / "together", tmp_path / "alone")
    all_done(crew.all(disco, "test", tmp_path / "together", "--outside", 20))
    for name in ("together", "alone"):
        assert disco("test", tmp_path / name, "--outside", 20) == (0, "")
    mine, theirs = (json.loads((tmp_path / name / "test.json").read_text()) for name in ("together", "alone"))
    assert mine | {"seconds": 0} == theirs | {"seconds": 0}
    answers = [(tmp_path / name / "answers-last.npz").read_bytes() for name in ("together", "alone")]
    assert answers[0] == answers[1]


def test_a_tracker_is_tested(crew, tmp_path):
    videos = write_videos(tmp_path / "videos", 4)
    words = ["otb", videos, "--results", tmp_path / "results"]
    refused_or_done(crew.all(disco, *words), AT_WORK)
    assert disco(*words) == (0, "")
    for sequence in read_sequences(videos):
        found = read_result(tmp_path / "results" / "frozen", sequence).boxes
        assert torch.equal(found, found[:1].expand_as(found))


def test_an_object_is_followed(crew, tmp_path):
    film = write_video(tmp_path / "film.mp4", 12)
    all_done(crew.all(disco, "track", film, "--box", "4,12,8,8", "--out", tmp_path / "track"))
    assert sorted(files(tmp_path / "track")) == ["track.csv", "track.mp4"]
    assert (tmp_path / "track" / "track.csv").read_text().count("\n") == 13


def waves(*words):
    """`disco scene` with a small network."""
    from scale_disco.tasks.scene.commands import scene
    from tests.tasks.scene.estimators import Waves

    scene.open_estimator = lambda options: Waves()
    return disco("scene", *words)


def test_fields_are_made(crew, pictures, tmp_path):
    pictures = pictures / "train" / "cat"
    all_done(crew.all(waves, pictures, "--out", tmp_path / "together", "--no-figure"))
    crew((waves, (pictures, "--out", tmp_path / "alone", "--no-figure")))
    mine, theirs = files(tmp_path / "together"), files(tmp_path / "alone")
    assert mine.keys() == theirs.keys()
    assert all(mine[name] == theirs[name] for name in mine if not name.endswith(".json"))


def test_a_name_that_another_process_takes_at_this_moment(pictures, tmp_path, monkeypatch):
    """It begins with the same picture, between two looks at the folder."""
    path = pictures / "train" / "cat" / "1.png"
    note = Job.note

    def slowly(job):
        found = note(job)
        if job.name == "1":
            job.conclude({"source": path.name, "complete": False}, {})
            job.file(".npy").touch()
        return found

    monkeypatch.setattr(Job, "note", slowly)
    assert [job.name for job in jobs_of([path], tmp_path, film=False)] == ["1"]
