from __future__ import annotations

import json
import statistics

import pytest

from scale_disco.cli import main
from scale_disco.models import list_models
from scale_disco.tasks.mnist_scale.options import MnistScaleOptions
from scale_disco.tasks.runs.experiments import EXPERIMENTS, TABLES
from scale_disco.tasks.runs.plots import plot_equivariance_and_error, plot_error_over_scale
from scale_disco.tasks.runs.tables import outcomes
from scale_disco.tasks.stl10.options import RECIPES, Stl10Options
from scale_disco.tasks.stl10.table import PAPER, Tables2And3
from scale_disco.tasks.stl10.training import EXPERIMENT
from tests.tasks.runs.folders import cells, write_run
from tests.tasks.runs.trial import assert_one_line

IMAGES = 8000
SIZES = {0.5: "smaller", 2**-0.5: "smaller", 1.0: "test", 2**0.5: "larger", 2.0: "larger"}
METADATA = {
    "name": "folder/scenes96",
    "train": "1a57beb6bd2a",
    "test": "0f0f",
    "classes": ["bark", "moss"],
    "mean": [0.5] * 3,
    "deviation": [0.2] * 3,
}


def scales_of(errors, images=IMAGES):
    """Errors at all sizes: those of the test, and as many more as the size is off in hundredths."""
    return [
        {"kind": kind, "low": size, "high": size, "images": images, "errors": errors + round(100 * abs(1 - size))}
        for size, kind in SIZES.items()
    ]


@pytest.fixture
def add_run(tmp_path):
    """Write the folder of a run on images, tested or not."""

    def write(name, errors=None, metadata=METADATA, about=None, **settings):
        chosen = Stl10Options(**{"depth": 10, "width": 1, "format": "folder", "side": 48, **settings})
        scales = [] if errors is None else scales_of(errors)
        return write_run(
            tmp_path / "runs",
            name,
            chosen,
            errors,
            images=IMAGES,
            metadata=metadata,
            **{"scales": scales, **(about or {})},
        )

    return write


def tables_of(*folders):
    return Tables2And3.sort(outcomes(folders, "stl10"))


def test_every_experiment_on_images_has_its_tables_and_every_model_its_row():
    assert set(TABLES) == set(EXPERIMENTS) - {"tracker", "scene"}  # which have tests of their own kind
    for name, group in TABLES.items():
        assert group.experiment == name
        assert tuple(group.paper) == EXPERIMENTS[name].options.fields()["model"].metadata["choices"]
    assert list(PAPER) == list_models("stl10")


def test_the_paper_stands_next_to_it(add_run):
    runs = add_run("a", 800, model="stl10/wrn")
    (group,) = tables_of(runs)
    rows = [cells(group.table(), row.name) for row in PAPER.values()]
    assert [row[2] for row in rows] == ["11.48", "11.62", "12.48", "11.28", "25.47", "8.51", "8.07"]
    assert [row[5] for row in rows] == ["1", "11", "5.5", "4", "1.5", "16.5", "5"]


def test_mean_and_std_over_seeds(add_run):
    for seed, errors in enumerate((1600, 1680, 1760)):
        add_run(f"disco{seed}", errors, model="stl10/disco", seed=seed, about={"seconds": 240 + seed})
    runs = add_run("wrn", 2000, model="stl10/wrn", about={"seconds": 48.2})
    (group,) = tables_of(runs)
    text = group.table()
    assert cells(text, "DISCO") == [
        "DISCO", "21.00 ± 1.00 (3 runs)", "8.07", "241", "5.0", "5", "0.02", "494,549",
    ]  # fmt: skip
    assert cells(text, "WRN") == ["WRN", "25.00 ± 0.48 (1 run)", "11.48", "48", "1.0", "1", "-", "494,549"]
    std = (1.0**2 / 3 + 100**2 * 0.25 * 0.75 / IMAGES) ** 0.5  # over seeds, and binomial for one run
    assert group.gaps() == f"- folder/scenes96: best DISCO; WRN +4.00 ± {std:.2f} points"


def test_time_is_compared_on_one_machine_only(add_run):
    add_run("disco", 1600, model="stl10/disco", about={"seconds": 50.0})
    runs = add_run("dss", 1600, model="stl10/dss", about={"seconds": 5.0})
    (group,) = tables_of(runs)
    assert cells(group.table(), "DISCO")[3:5] == ["50", "-"]  # there is no WRN
    add_run("wrn", 1600, model="stl10/wrn", about={"seconds": 20.0})
    add_run("other", 1600, model="stl10/wrn", seed=1, about={"seconds": 1.0, "machine": "tally sticks"})
    add_run("sesn", 1600, model="stl10/sesn-hermite", about={"seconds": 70.0, "machine": "knots"})
    (group,) = tables_of(runs)
    assert [cells(group.table(), name)[4] for name in ("WRN", "DSS", "DISCO")] == ["1.0", "0.2", "2.5"]
    assert cells(group.table(), "DSS")[3] == "5.0"
    assert cells(group.table(), "SESN, Hermite")[3:5] == ["70", "-"]


def test_what_is_missing_says_why(add_run):
    add_run("a", model="stl10/wrn")
    add_run("b", model="stl10/disco", about={"done": 3})
    add_run("c", model="stl10/sicnn", about={"done": 0, "status": "running"})
    runs = add_run("d", 500, model="stl10/dss", about={"complete": False})
    (group,) = tables_of(runs)
    text, epochs = group.table(), RECIPES["fast"].epochs
    assert cells(text, "WRN") == ["WRN", "missing (not tested)", "11.48", "-", "-", "1", "-", "-"]
    assert cells(text, "DISCO")[1] == f"missing (3 of {epochs} epochs)"
    assert cells(text, "SiCNN")[1] == f"missing (0 of {epochs} epochs)"
    assert cells(text, "DSS")[1] == "missing (not tested)"
    assert cells(text, "SS-CNN")[1] == "missing"
    assert group.parts() == [text]


@pytest.mark.parametrize(
    ("name", "settings", "title"),
    [
        ("stl10", {"format": "stl10", "side": 96}, "STL-10, WRN-10-1, recipe fast"),
        ("stl10-format", {"format": "stl10", "side": 96}, "stl10-format, not STL-10, WRN-10-1, recipe fast"),
        ("folder/stl10", {"side": 96}, "folder/stl10 at 96 pixels, not STL-10, WRN-10-1, recipe fast"),
        (
            "folder/scenes96",
            {"epochs": 10, "recipe": "paper"},
            "folder/scenes96 at 48 pixels, not STL-10, WRN-10-1, recipe paper stretched to 10 epochs",
        ),
        (
            "stl10",
            {"format": "stl10", "side": 96, "depth": 16, "width": 8, "limit": 100, "fold": 3, "dropout": 0.0},
            "STL-10, 100 training images, WRN-16-8, recipe fast, dropout 0, fold 3",
        ),
    ],
)  # fmt: skip
def test_titles_say_what_it_is(name, settings, title, add_run, capsys):
    runs = add_run("a", 800, metadata=METADATA | {"name": name}, model="stl10/wrn", **settings)
    (group,) = tables_of(runs)
    assert group.title == title
    assert main(["table", "stl10", str(runs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"## {title}"
    # Errors of other data stand next to results that are called the paper's on STL-10.
    assert ("paper, STL-10" in lines[2]) == (name != "stl10")


def test_runs_of_different_settings_are_not_mixed(add_run):
    changes = [
        {}, {"recipe": "paper"}, {"epochs": 2}, {"limit": 100}, {"side": 96}, {"depth": 16}, {"width": 2},
        {"dropout": 0.0}, {"holdout": 0.1}, {"batch": 64}, {"accumulate": 2}, {"learning_rate": 0.1},
        {"weight_decay": 0.0}, {"smoothing": 0.1}, {"ema": 0.9}, {"precision": "bf16"}, {"test_share": 0.2},
    ]  # fmt: skip
    for index, change in enumerate(changes):
        runs = add_run(f"run{index:02}", 800, model="stl10/disco", **change)
    add_run("other", 800, model="stl10/disco", metadata=METADATA | {"name": "folder/other"})
    tables = tables_of(runs)
    assert len(tables) == len({group.title for group in tables}) == len(changes) + 1
    add_run("usual", 900, model="stl10/wrn", epochs=RECIPES["fast"].epochs, seed=5)
    assert sorted(len(group.outcomes) for group in tables_of(runs))[-2:] == [1, 2]  # as many epochs as the recipe has


def test_other_images_of_the_same_name_are_told_apart(add_run):
    add_run("a", 800, model="stl10/wrn")
    runs = add_run("b", 900, model="stl10/wrn", metadata=METADATA | {"train": "fedcba9876"})
    titles = [group.title for group in tables_of(runs)]
    assert [title.rpartition(", ")[2] for title in titles] == ["images 1a57beb6", "images fedcba98"]


def test_variants_have_rows_of_their_own(add_run):
    add_run("a", 1600, model="stl10/disco")
    add_run("b", 1500, model="stl10/disco", layout="projected", pools="max", seed=1)  # the same in other words
    add_run("c", 1400, model="stl10/disco", pools="mean")
    add_run("d", 1300, model="stl10/disco", pools="blur", layout="plain")
    runs = add_run("e", 1200, model="stl10/sesn-hermite", layout="interscale")
    (group,) = tables_of(runs)
    text = group.table()
    names = [line.split("|")[1].strip() for line in text.splitlines()[2:]]
    assert names[5:] == [
        "SESN, Hermite", "SESN, Hermite, interscale layout", "DISCO", "DISCO, mean pools",
        "DISCO, plain layout, blur pools",
    ]  # fmt: skip
    assert cells(text, "DISCO")[1] == "19.38 ± 0.88 (2 runs)"
    assert cells(text, "DISCO, mean pools")[1:3] == ["17.50 ± 0.42 (1 run)", "-"]  # the paper has none
    assert cells(text, "SESN, Hermite")[1] == "missing"


def test_bases_are_table_3(add_run):
    for seed, errors in enumerate((1600, 1680)):
        add_run(f"best{seed}", errors, model="stl10/disco", seed=seed)
    for steps, errors, value in ((50, 1760, 0.05), (8, 1840, 0.25)):
        for seed in range(2):
            about = {"equivariance": value}
            runs = add_run(
                f"{steps}-{seed}", errors + 80 * seed, model="stl10/disco", basis_steps=steps, seed=seed, about=about
            )
    add_run("blur", model="stl10/disco", basis_steps=8, pools="blur")
    (group,) = tables_of(runs)
    assert cells(group.table(), "DISCO")[1] == "20.50 ± 0.71 (2 runs)"  # without those
    assert "blur" not in group.table()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in group.table_of_bases().splitlines()[2:]]
    assert rows == [
        ["8 steps", "0.25", "23.50 ± 0.71 (2 runs)"],
        ["50 steps", "0.05", "22.50 ± 0.71 (2 runs)"],
        ["optimum", "0.02", "20.50 ± 0.71 (2 runs)"],
        ["8 steps, blur pools", "-", "missing (not tested)"],
        ["optimum, blur pools", "-", "missing"],
        ["paper, STL-10", "0.240", "8.63"],
        ["paper, STL-10", "0.082", "8.25"],
        ["paper, STL-10", "0.003", "8.07"],
    ]
    assert group.table_of_bases() in group.parts()
    assert [point.name for point in group.points()] == ["8 steps", "50 steps", "optimum"]
    assert group.points()[0][1:] == pytest.approx((0.25, 23.5, statistics.stdev([23, 24])))
    assert [point[1:3] for point in group.points_of_paper()] == [(0.24, 8.63), (0.082, 8.25), (0.003, 8.07)]


def test_table_3_only_with_its_runs(add_run):
    runs = add_run("a", 1600, model="stl10/disco")
    (group,) = tables_of(runs)
    assert group.table_of_bases() == ""
    assert [point[:2] for point in group.points()] == [("optimum", 0.02)]


def test_sizes_have_stds_over_seeds(add_run):
    for seed, errors in enumerate((1600, 1680, 1760)):
        add_run(f"disco{seed}", errors, model="stl10/disco", seed=seed)
    less = scales_of(2000)[2:4]
    runs = add_run("wrn", 2000, model="stl10/wrn", about={"scales": less})
    (group,) = tables_of(runs)
    text = group.scale_table()
    first = [line.split("|")[1].strip() for line in text.splitlines()]
    assert first[0] == "scale of images"
    assert first[2:] == ["0.5", "0.707", "1", "1.414", "2"]
    assert cells(text, "1") == ["1", "25.00 ± 0.48", "21.00 ± 1.00"]
    assert cells(text, "2") == ["2", "missing", "22.25 ± 1.00"]
    assert group.bars() == "standard deviations over seeds (of one run: binomial)"
    assert tables_of(runs / "wrn")[0].bars() == "binomial standard deviations"
    assert tables_of(*(runs / f"disco{seed}" for seed in range(3)))[0].bars() == "standard deviations over seeds"


def test_command_writes_and_draws(add_run, tmp_path, capsys):
    add_run("a", 2000, model="stl10/wrn")
    add_run("b", 1840, model="stl10/disco", basis_steps=8, about={"equivariance": 0.25})
    runs = add_run("c", 1600, model="stl10/disco")
    write_run(runs, "digits", MnistScaleOptions(model="mnist/cnn"), 1000)  # left out
    out, figure, scales = tmp_path / "table.md", tmp_path / "table.png", tmp_path / "scales.png"
    figures = ["--plot", str(figure), "--scales", str(scales)]
    assert main(["table", "stl10", str(runs), "--out", str(out), *figures]) == 0
    printed = capsys.readouterr().out
    assert out.read_text() == printed
    assert "mnist" not in printed
    title, table, bases, gaps, sizes, made = printed.split("\n\n")
    assert title == "## folder/scenes96 at 48 pixels, not STL-10, WRN-10-1, recipe fast"
    assert "20.00 ± 0.45 (1 run)" in table
    assert cells(bases, "8 steps")[1:] == ["0.25", "23.00 ± 0.47 (1 run)"]
    assert gaps.startswith("- folder/scenes96: best DISCO; WRN +5.00 ± ")
    assert cells(sizes, "0.5")[1:] == ["25.62 ± 0.49", "20.62 ± 0.45"]
    assert made.count("`disco train stl10 --model stl10/disco --depth 10 --width 1") == 2
    assert made.count("--basis-steps 8") == 1
    assert made.count("then `disco test`: abacus; torch 2.4; 2026-01-01") == 3
    assert figure.stat().st_size > 10_000
    assert scales.stat().st_size > 10_000


def test_sizes_are_points_of_one_line(add_run):
    pytest.importorskip("matplotlib")
    add_run("a", 2000, model="stl10/wrn")
    runs = add_run("b", 1600, model="stl10/disco", about={"scales": scales_of(1600)[::-1]})
    (group,) = tables_of(runs)
    (axis,) = plot_error_over_scale(group.curves(), EXPERIMENT.training_scales, EXPERIMENT.subject, group.bars()).axes
    lines = [part.lines[0] for part in axis.containers]
    assert [list(line.get_xdata()) for line in lines] == [pytest.approx(list(SIZES))] * 2
    assert lines[1].get_ydata() == pytest.approx([20.625, 20.3625, 20, 20.5125, 21.25])
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["0.5", "0.7", "1", "1.4", "2"]
    assert [text.get_text() for text in axis.get_legend().texts] == ["scale in training", "WRN", "DISCO"]
    assert axis.get_title() == "Error vs. scale of images, with binomial standard deviations"


def test_other_data_have_an_axis_of_their_own(add_run):
    pytest.importorskip("matplotlib")
    runs = add_run("a", 1600, model="stl10/disco")
    (group,) = tables_of(runs)
    figure = plot_equivariance_and_error(group.points(), group.points_of_paper(), (group.other_data(), "STL-10"))
    legends = [axis.get_legend().texts[0].get_text() for axis in figure.axes]
    assert legends == ["paper, on STL-10", "measured here, on folder/scenes96"]
    assert [list(axis.containers[0].lines[0].get_ydata()) for axis in figure.axes] == [[8.63, 8.25, 8.07], [20.0]]
    add_run("b", 800, model="stl10/disco", metadata=METADATA | {"name": "stl10"}, format="stl10", side=96)
    (group,) = tables_of(runs / "b")
    assert group.other_data() == ""  # and both share one
    assert len(plot_equivariance_and_error(group.points(), group.points_of_paper()).axes) == 1


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run of two epochs on a few images; read-only."""
    drawing = pytest.importorskip("PIL.Image", reason="images need scale-disco[plot]")
    pytest.importorskip("lightning", reason="training needs scale-disco[train]")
    folder = tmp_path_factory.mktemp("stl10")
    for part, count in (("train", 4), ("test", 3)):
        for place, name in enumerate(("bark", "moss")):
            (folder / "images" / part / name).mkdir(parents=True)
            for index in range(count):
                path = folder / "images" / part / name / f"{index}.png"
                drawing.effect_noise((16, 16), 20 + 60 * place + index).convert("RGB").save(path)
    call = "train stl10 --model stl10/disco --depth 10 --width 1 --format folder --side 16 --batch 4 --epochs 2"
    words = [*call.split(), "--data", str(folder / "images"), "--out", str(folder / "run"), "--threads", "1"]
    assert main(words) == 0
    return folder / "run"


def test_a_trained_network_is_tested_and_told(trained, tmp_path, capsys):
    report, figure, curves = tmp_path / "sizes.md", tmp_path / "sizes.png", tmp_path / "curves.svg"
    capsys.readouterr()
    assert main(["test", str(trained), "--out", str(report), "--plot", str(figure)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("scale of images")
    assert [line.split()[:3] for line in printed.splitlines()[1:-1]] == [
        ["0.5", "smaller", "6"], ["0.707", "smaller", "6"], ["1", "test", "6"], ["1.414", "larger", "6"],
        ["2", "larger", "6"],
    ]  # fmt: skip
    assert report.read_text().startswith("# Error vs. scale of images\n")
    assert "digits" not in printed + report.read_text()
    assert figure.stat().st_size > 10_000
    assert main(["table", "stl10", str(trained), "--scales", str(curves)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(
        "## folder/images at 16 pixels, not STL-10, WRN-10-1, recipe fast stretched to 2 epochs, batch 4\n"
    )
    errors = json.loads((trained / "test.json").read_text())["errors"]
    assert cells(printed, "DISCO")[1].startswith(f"{100 * errors / 6:.2f} ± ")
    assert cells(printed, "1")[1].startswith(f"{100 * errors / 6:.2f} ± ")
    assert curves.stat().st_size > 10_000


def test_command_is_json_when_asked(add_run, tmp_path, capsys):
    add_run("a", 1600, model="stl10/disco", basis_steps=8)
    runs = add_run("b", model="stl10/wrn")
    assert main(["table", "stl10", str(runs), "--json", "--out", str(tmp_path / "table.json")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "table.json").read_text()) == document
    (group,) = document
    assert group["title"] == "folder/scenes96 at 48 pixels, not STL-10, WRN-10-1, recipe fast"
    first, second = group["runs"]
    assert (first["settings"]["basis_steps"], first["error"]) == (8, 0.2)
    assert first["paper"]["bases"] == [[0.24, 8.63], [0.082, 8.25], [0.003, 8.07]]
    assert (second["tested"], second["error"]) == (None, None)
    assert second["paper"] == {"name": "WRN", "seconds": 10, "error": 11.48, "bases": []}


def test_data_without_a_name_are_refused(add_run, capsys):
    for name in ("name", "train"):
        runs = add_run(name, 1600, model="stl10/wrn", metadata={key: METADATA[key] for key in METADATA if key != name})
        assert main(["table", "stl10", str(runs / name)]) == 1
        assert_one_line(capsys, "table", "run.json: damaged, or not a run record")


def test_runs_of_another_experiment_only(add_run, tmp_path, capsys):
    runs = add_run("a", 1600, model="stl10/disco")
    assert main(["table", "mnist-scale", str(runs)]) == 1
    assert_one_line(capsys, "table", f"no run of mnist-scale in {runs}: those are of stl10")
    digits = write_run(tmp_path / "digits", "a", MnistScaleOptions(model="mnist/cnn"), 1000)
    assert main(["table", "stl10", str(digits), str(digits / "a")]) == 1
    assert_one_line(capsys, "table", f"no run of stl10 in {digits}, {digits / 'a'}: those are of mnist-scale")
    assert main(["table", "mnist-scale", str(runs), str(digits)]) == 0
    assert "stl10" not in capsys.readouterr().out
