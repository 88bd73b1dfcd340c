"""`disco otb`: choice of sequences, tables, result files and errors."""

from __future__ import annotations

import json
import re
import warnings
from argparse import Namespace

import pytest
import torch

from scale_disco.cli import main
from scale_disco.models.packaged import cards
from scale_disco.tasks.tracking.commands.chosen import tracker_fingerprint
from scale_disco.tasks.tracking.data.sequences import read_sequences
from scale_disco.tasks.tracking.plots import plot_success
from scale_disco.tasks.tracking.results import Result, write_result
from tests.conftest import SHARED
from tests.tasks.tracking.sequences import moving, write_otb

pytest.importorskip("PIL")

STEADY = [[3, 2, 4, 5]] * 6
STATIC = ["--tracker", "static-box"]
GROWING = [[3, 2, 2 + number, 2 + number] for number in range(6)]


@pytest.fixture
def videos(tmp_path, monkeypatch):
    """Three videos: one of OTB, one static and one growing."""
    write_otb(tmp_path / "videos", "Deer", moving(5))
    write_otb(tmp_path / "videos", "steady", STEADY)
    write_otb(tmp_path / "videos", "growing", GROWING)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "videos"


def document(capsys, *words):
    capsys.readouterr()
    assert main(["otb", *map(str, words), *([] if "--tracker" in words else STATIC), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *words):
    """The one line that a call is refused with."""
    capsys.readouterr()
    assert main(["otb", *map(str, words), *([] if "--tracker" in words else STATIC)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("disco otb: ")
    assert err.count("\n") == 1
    return err


def test_the_table_has_rows_for_sequences_and_groups(videos, capsys):
    assert main(["otb", str(videos), *STATIC]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^sequence +frames +AUC +precision +scale error +FPS$", out, flags=re.MULTILINE)
    assert re.search(r"^steady +6 +0\.952 +1\.000 +0\.000 +\d+$", out, flags=re.MULTILINE)
    for row in ("Deer +5", "growing +6", r"all \(3\) +17", r"scale variation \(1\) +6", r"other \(2\) +11"):
        assert re.search(rf"^{row} +0\.\d\d\d ", out, flags=re.MULTILINE), row
    assert "scale variation: by OTB's attribute SV, and of other names where the largest" in out
    assert "as frames over time" in out
    assert "as the mean of 1 / time per frame" in out
    assert out.endswith("static-box: a baseline, which returns the first box in every frame\n")
    assert sorted(path.name for path in (videos.parent / "runs" / "otb" / "static-box").iterdir()) == [
        "Deer.txt", "growing.txt", "steady.txt", "times", "tracker.json",
    ]  # fmt: skip


def test_json_has_all_metrics_and_is_the_same_from_files(videos, capsys):
    first = document(capsys, videos)
    assert first == document(capsys, videos)  # from the files of the first run, times and all
    assert list(first["sequences"]) == ["Deer", "growing", "steady"]
    assert first["sequences"]["steady"]["auc"] == pytest.approx(20 / 21)
    assert {name: group["sequences"] for name, group in first["overall"].items()} == {
        "all": 3, "scale variation": 1, "other": 2,
    }  # fmt: skip
    assert len(first["overall"]["all"]["success"]) == 21
    assert len(first["overall"]["all"]["precisions"]) == 51
    (videos.parent / "runs" / "otb" / "static-box" / "tracker.json").write_text('{"fingerprint": "other"}')
    assert "results of another tracker, other, this one" in refused(capsys, videos)
    assert document(capsys, videos, "--results", "elsewhere")["tracker"] == "static-box"


def test_sequences_are_chosen_by_name(videos, capsys):
    assert list(document(capsys, videos, "--sequences", "steady", "Deer", "steady")["sequences"]) == ["steady", "Deer"]
    assert "no sturdy in" in (line := refused(capsys, videos, "--sequences", "Deer", "sturdy"))
    assert line.endswith("did you mean steady?\n")
    assert refused(capsys, videos, "--sequences", "xyz").endswith("there are Deer, growing, steady\n")


def test_incomplete_lists_need_allow_missing(videos, capsys):
    line = refused(capsys, videos, "--list", "OTB2013")
    assert "has 1 of 51 targets of OTB2013, without Basketball, Bolt, Boy," in line
    assert "Woman; use --allow-missing to evaluate these, which is not an OTB-2013 score" in line
    call = [videos, "--list", "OTB2013", "--allow-missing"]
    assert document(capsys, *call)["remark"] == "1 of 51 targets of OTB2013: not an OTB-2013 score"
    assert main(["otb", *map(str, call), *STATIC, "--out", "report.md"]) == 0
    assert "\n1 of 51 targets of OTB2013: not an OTB-2013 score\n" in capsys.readouterr().out
    assert "1 of 51 targets of OTB2013: not an OTB-2013 score." in (videos.parent / "report.md").read_text()
    assert "--allow-missing needs --list" in refused(capsys, videos, "--allow-missing")
    assert "has 0 of 50 targets" in refused(capsys, videos.parent / "videos" / "steady", *call[1:2], "OTB50", call[3])


def test_complete_lists_have_no_remark(videos, capsys, monkeypatch):
    monkeypatch.setattr("scale_disco.tasks.tracking.commands.otb.LISTS", {"OTB2013": ("Deer",)})
    report = document(capsys, videos, "--list", "OTB2013")
    assert (report["remark"], list(report["sequences"])) == ("", ["Deer"])
    assert report["scale variation"] == "by OTB's attribute SV"


@pytest.fixture
def others(videos):
    """Result folders of two other trackers: one is right, one is off."""
    folders = [videos.parent / "theirs" / "oracle", videos.parent / "theirs" / "off"]
    for video in read_sequences(videos):
        write_result(folders[0], video.name, Result(video.boxes, None))
        shifted = torch.cat([video.boxes[:1], video.boxes[1:] + torch.tensor([30, 0, 0, 0])])
        write_result(folders[1], video.name.lower(), Result(shifted, torch.full((len(shifted),), 0.1)))
    return folders


def test_other_trackers_are_compared(videos, others, capsys):
    assert main(["otb", str(videos), *STATIC, "--compare", *map(str, others), "--out", "report.md"]) == 0
    out = capsys.readouterr().out
    rows = re.findall(r"^(oracle|static-box|off) +(0\.\d+) ", out, flags=re.MULTILINE)
    assert [name for name, _ in rows] == ["oracle", "static-box", "off"]
    assert rows[0][1] == "0.952"
    assert "| oracle     | 0.952 |" in (videos.parent / "report.md").read_text()
    compared = document(capsys, videos, "--compare", *others)["compared"]
    assert compared["oracle"]["all"]["fps"] is None
    assert compared["off"]["all"]["frame_fps"] == pytest.approx(10)
    assert compared["oracle"]["scale variation"]["scale_error"] == 0


def test_trackers_of_the_same_name_are_labeled_by_path(videos, others, capsys):
    same = videos.parent / "static-box"
    others[0].rename(same)
    assert list(document(capsys, videos, "--compare", same, others[1])["compared"]) == [str(same), "off"]


def test_invalid_results_raise_before_tracking(videos, others, capsys):
    (others[0] / "Deer.txt").write_text("1,2,3,4\n")
    assert "expected a line for each of 5 frames of Deer, got 1" in refused(capsys, videos, "--compare", others[0])
    (others[0] / "Deer.txt").unlink()
    assert "no results for 1 of 3 sequences" in refused(capsys, videos, "--compare", others[0])
    assert not (videos.parent / "runs").exists()


def test_the_success_plot_has_scores_and_highlights_ours(videos, others, capsys):
    pytest.importorskip("matplotlib")
    assert main(["otb", str(videos), *STATIC, "--compare", *map(str, others), "--plot", "success.svg"]) == 0
    assert capsys.readouterr().err.endswith("wrote success.svg\n")
    assert (videos.parent / "success.svg").read_text().startswith("<?xml")
    half = [0.5] * 21, [0.25] * 51
    figure = plot_success({"others": ([1.0] * 20 + [0.0], [1.0] * 51), "ours": half}, "ours", "two")
    for axis, labels in zip(figure.axes, (["others 0.952", "ours 0.500"], ["others 1.000", "ours 0.250"]), strict=True):
        assert [text.get_text() for text in axis.get_legend().get_texts()] == labels
        thin, thick = axis.get_lines()
        assert thick.get_linewidth() > thin.get_linewidth()
        assert thick.get_color() == "#1f6f8b" != thin.get_color()
    assert list(figure.axes[0].get_lines()[0].get_xdata()[[0, 1, 20]]) == [0, 0.05, 1]
    assert list(figure.axes[1].get_lines()[0].get_xdata()[[0, 20, 50]]) == [0, 20, 50]


def test_the_fingerprint_depends_on_weights_and_mode(tmp_path):
    options = Namespace(tracker=str(tmp_path), mode="axis", motion=None, pretrained=None)
    fingerprints = {tracker_fingerprint(options)}
    for content in (b"one", b"two"):
        (tmp_path / "best.safetensors").write_bytes(content)
        fingerprints.add(tracker_fingerprint(options))
        (tmp_path / "notes.txt").write_bytes(content)
        assert tracker_fingerprint(options) in fingerprints
    options.mode = "pyramid"
    fingerprints.add(tracker_fingerprint(options))
    options.pretrained = str(tmp_path / "notes.txt")
    assert len({*fingerprints, tracker_fingerprint(options)}) == 5
    (tmp_path / "below").mkdir()
    again = Namespace(**vars(options) | {"tracker": str(tmp_path / "below" / "..")})
    assert tracker_fingerprint(again) == tracker_fingerprint(options)  # the same folder by another path


def test_the_fingerprint_of_the_default_has_the_checksum_of_the_packaged_weights():
    options = Namespace(tracker="track/disco", mode=None, motion=None, pretrained=None)
    weights = [cards()["track/disco"].sha256[:16]]
    assert json.loads(tracker_fingerprint(options)) == {"network": "track/disco", "weights": weights}


@pytest.mark.thorough
def test_the_default_is_disco_with_packaged_weights(videos, capsys):
    report = document(capsys, videos, "--tracker", "track/disco", "--sequences", "growing")
    assert main(["otb", str(videos), "--sequences", "growing", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == report  # from its files
    assert report["tracker"] == "disco"


def test_networks_without_packaged_weights_need_a_file(videos, capsys):
    line = refused(capsys, videos, "--tracker", "track/siamfc")
    assert line == "disco otb: --tracker track/siamfc needs --pretrained, or give the folder of a run\n"


def test_damaged_sequences_do_not_affect_others(videos, capsys):
    (videos / "steady" / "groundtruth_rect.txt").write_text("")
    assert "steady" in refused(capsys, videos)
    assert list(document(capsys, videos, "--sequences", "growing")["sequences"]) == ["growing"]


def test_frames_without_boxes_are_a_one_line_warning(videos, capsys):
    truth = videos / "steady" / "groundtruth_rect.txt"
    truth.write_text("".join(truth.read_text().splitlines(keepends=True)[:4]))
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main(["otb", str(videos), *STATIC, "--sequences", "steady"]) == 0
    assert capsys.readouterr().err == "steady: 6 frames and boxes for 4; the last 2 skipped\n"


def test_tiger1_can_start_late(videos, capsys):
    write_otb(videos, "Tiger1", moving(9))
    assert document(capsys, videos, "--sequences", "Tiger1")["sequences"]["Tiger1"]["frames"] == 9
    late = document(capsys, videos, "--sequences", "Tiger1", "--tiger1-late")  # results of nine frames are not used
    assert late["sequences"]["Tiger1"]["frames"] == 4


def test_damaged_frames_are_named_and_finished_results_remain(videos, capsys):
    frame = videos / "growing" / "img" / "0004.png"
    content = frame.read_bytes()
    frame.write_bytes(b"")
    line = refused(capsys, videos)
    assert "growing, frame 4 of 6: cannot read" in line
    assert str(frame) in line
    assert (videos.parent / "runs" / "otb" / "static-box" / "Deer.txt").is_file()
    frame.write_bytes(content)
    assert list(document(capsys, videos)["sequences"]) == ["Deer", "growing", "steady"]


def test_real_sequences_are_evaluated(tmp_path, capsys):
    if not (SHARED / "data" / "otb").is_dir():
        pytest.skip("no ../shared/data/otb with sequences of OTB")
    report = document(capsys, SHARED / "data" / "otb", "--sequences", "Skiing", "Deer", "--results", tmp_path)
    assert report["overall"]["scale variation"]["sequences"] == 1
    assert report["sequences"]["Deer"]["frames"] == 71
    assert report["sequences"]["Deer"]["auc"] == pytest.approx(0.086, abs=5e-4)


def test_results_of_the_old_name_of_the_baseline_are_used(videos, capsys):
    """Version 0.1 called the static-box baseline "frozen"."""
    new = document(capsys, videos)
    folder = videos.parent / "runs" / "otb"
    assert json.loads((folder / "static-box" / "tracker.json").read_text()) == {"fingerprint": '{"network": "frozen"}'}
    (folder / "static-box").rename(folder / "frozen")
    written = (folder / "frozen" / "Deer.txt").stat().st_mtime_ns
    old = document(capsys, videos, "--tracker", "frozen")
    assert old.pop("tracker") == "frozen"
    assert new.pop("tracker") == "static-box"
    assert old == new
    assert (folder / "frozen" / "Deer.txt").stat().st_mtime_ns == written
