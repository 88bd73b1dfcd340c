from __future__ import annotations

import html
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import scale_disco.tasks.quickstart.tour as module
from scale_disco.cli import main
from scale_disco.cli.app import make_app
from scale_disco.tasks.bench.timing import LayerSetting
from scale_disco.tasks.quickstart.story import report
from tests.conftest import PATIENCE, ROOT

for extra in ("matplotlib", "mlxtend", "lightning"):
    pytest.importorskip(extra, reason="the quickstart needs scale-disco[train,plot,demo]")

TRIAL = ["quickstart", "--seeds", "1", "--epochs", "1", "--limit", "96", "--processes", "2"]
TRAINED = [*TRIAL[:-1], "1"]  # where networks are trained already, one process is faster: each loads libraries
# The same with small settings, for a process of its own.
SCRIPT = """
import sys
from tests.tasks.quickstart.test_quickstart import smaller
if __name__ == "__main__":
    smaller()
    from scale_disco.cli import main
    sys.exit(main(sys.argv[1:]))
"""


def smaller():
    """Use layers and images that take seconds."""
    module._LAYERS = (LayerSetting(1, 2, 2, 14, 3, module.BASIS[1]),) * 2
    module._COUNTS = range(1, 3)
    module._DIGITS = 2


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Folder of a finished quickstart; read-only."""
    out = tmp_path_factory.mktemp("quickstart") / "first look"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_LAYERS", "_COUNTS", "_DIGITS"):
            patch.setattr(module, name, getattr(module, name))
        smaller()
        assert main([*TRIAL, "--out", str(out)]) == 0
    return out


def figures_of(out):
    return json.loads((out / "report.json").read_text())


def test_all_steps_are_measured(done):
    results = figures_of(done)
    assert results["complete"]
    assert results["training images"] == 96
    assert results["reused"] == 0
    assert set(results["networks"]) == {"DISCO", "SESN, Hermite", "CNN"}
    for name, model in module.NETWORKS.items():
        tested = json.loads((done / "runs" / f"{model.replace('/', '-')}-0" / "test.json").read_text())
        network = results["networks"][name]
        assert network["seen"] == [tested["errors"] / tested["images"]]
        assert network["parameters"] == 25_826
        assert sum(images for *_, images in network["curve"]) == 1_500 + 500 + 500
        (larger,), (smaller,), (unseen,) = network["larger"], network["smaller"], network["unseen"]
        assert unseen == pytest.approx((larger + smaller) / 2)
        count = [row for row in network["curve"] if row[0] == "larger"]
        assert larger == sum(row[3] for row in count) / sum(row[4] for row in count)
    errors = results["equivariance"]["errors"]
    assert min(errors, key=lambda name: errors[name]["photographs"]) == "DISCO"
    assert results["basis"]["milliseconds"] > 0
    assert [len(results["speed"][part]) for part in ("layers", "growth")] == [2, 2]


def test_report_shows_the_results_and_loads_nothing_from_the_network(done):
    page = (done / "report.html").read_text()
    results = figures_of(done)
    assert page.count("<img ") == 4
    assert not re.findall(r"(?:src|href)=\"(?!data:|#)", page)
    assert "url(" not in page
    assert "<script" not in page
    text = re.sub(r"<[^>]*>", " ", page)
    for row in results["equivariance"]["errors"].values():
        assert all(f"{error:.4f}" in text for error in row.values())
    for row in results["speed"]["layers"]:
        assert f"{row['dense / ours']:.2f}" in text
    for network in results["networks"].values():
        assert f"{100 * network['unseen'][0]:.1f}" in text
    assert "Not measured yet" not in page


def commands_of(out):
    """Commands in the report."""
    page = (out / "report.html").read_text()
    lines = [line for block in re.findall(r"<pre>(.*?)</pre>", page, flags=re.DOTALL) for line in block.splitlines()]
    return [html.unescape(line) for line in lines]


def test_commands_of_the_report_are_valid(done, capsys):
    commands = [shlex.split(line, comments=True) for line in commands_of(done) if line.startswith("disco")]
    assert len(commands) == 9
    for command in commands:
        function, _, _ = make_app().parse_args(command[1:])
        assert function.command.words[0] == command[1]
    (test,) = [command for command in commands if command[1] == "test"]
    assert Path(test[2]).is_dir()  # its name has a space
    (table,) = [command for command in commands if command[1] == "table"]
    assert main(table[1:]) == 0
    assert "| DISCO " in capsys.readouterr().out


def test_commands_of_the_report_name_a_trained_network(done):
    results = figures_of(done)
    assert results["seeds"] == [0]
    page = report({**results, "seeds": [5, 6]}, Path("out"))
    assert "disco test out/runs/digits-disco-5 " in page
    assert "digits-disco-0" not in page


@pytest.mark.thorough
def test_a_second_call_reuses_trained_networks(done, tmp_path, capsys, monkeypatch):
    out = tmp_path / "again"
    shutil.copytree(done, out)
    for name in ("_LAYERS", "_COUNTS", "_DIGITS"):
        monkeypatch.setattr(module, name, getattr(module, name))
    smaller()
    assert main([*TRAINED, "--out", str(out), "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert results["reused"] == 3
    assert results["networks"] == figures_of(done)["networks"]
    assert "3 of the networks were trained by an earlier call" in (out / "report.html").read_text()


def start(out, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *TRIAL, "--out", str(out), *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # shells ignore it in the background
    )


@pytest.mark.thorough
def test_ctrl_c_leaves_a_report_and_no_process(tmp_path):
    """Interrupted during training: the report has the earlier steps and the command to continue."""
    script = tmp_path / "stopped"
    process = start(script, "--epochs", "2000")
    while not list(script.glob("runs/*/epochs.csv")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    assert len(children) >= 2
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert f"the report so far is {script / 'report.html'}" in errors
    deadline = time.monotonic() + PATIENCE
    while any(Path(f"/proc/{child}").exists() for child in children):  # multiprocessing's own ends a moment later
        assert time.monotonic() < deadline, children
        time.sleep(0.1)
    page = (script / "report.html").read_text()
    assert page.endswith("</html>\n")
    assert page.count("<img ") == 3
    assert page.count("Not measured yet") == 1
    assert f"disco {shlex.join([*TRIAL, '--out', str(script), '--epochs', '2000'])}" in commands_of(script)
    assert not figures_of(script)["complete"]


@pytest.mark.thorough
def test_training_errors_are_one_line(done, tmp_path, capsys, monkeypatch):
    for name in ("_LAYERS", "_COUNTS", "_DIGITS"):
        monkeypatch.setattr(module, name, getattr(module, name))
    smaller()
    out = tmp_path / "damaged"
    shutil.copytree(done, out)
    (out / "report.json").unlink()
    (out / "runs" / "digits-cnn-0" / "answers-last.npz").write_bytes(b"nothing")
    assert main([*TRAINED, "--out", str(out), "--quiet"]) == 1
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "training digits/cnn: ValueError" in errors
    assert "answers-last.npz: damaged" in errors
    results = figures_of(out)
    assert not results["complete"]
    assert results["equivariance"]["errors"]


@pytest.mark.parametrize("content", ["", "[" * 100_000, "[]", '{"complete": false}'])
def test_invalid_reports_are_not_complete(content, tmp_path):
    (tmp_path / "report.json").write_text(content)
    assert not module._is_complete(tmp_path / "report.json")


def test_an_interrupted_call_keeps_a_complete_report(done, tmp_path, monkeypatch):
    out = tmp_path / "complete"
    shutil.copytree(done, out)
    before = (out / "report.html").read_bytes(), (out / "report.json").read_bytes()

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_compare", stop)
    assert main([*TRIAL, "--out", str(out)]) == 130
    assert ((out / "report.html").read_bytes(), (out / "report.json").read_bytes()) == before


def test_runs_of_other_settings_are_an_error(done, tmp_path, capsys):
    out = tmp_path / "other"
    shutil.copytree(done, out)
    before = (out / "report.html").read_bytes()
    assert main(["quickstart", "--seeds", "1", "--out", str(out)]) == 1
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "--epochs 1 --limit 96" in errors
    assert "another --out, or delete that folder" in errors
    assert (out / "report.html").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["--epochs", "0"], "--epochs must be at least 1, got 0"),
        (["--limit", "1"], "--limit must be at least 2, got 1"),
        (["--limit", "101"], "the last batch has 1"),
        (["--processes", "0"], "--processes must be at least 1, got 0"),
        (["--device", "cuda:7"], "device 'cuda:7' is not available; available: cpu"),
        (["--out", "file"], "cannot make the folder file: it is a file"),
    ],
)
def test_invalid_options_are_errors_before_any_work(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert main(["quickstart", *arguments]) == 1
    out, errors = capsys.readouterr()
    assert (out, errors.count("\n")) == ("", 1)
    assert message in errors
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_errors_name_missing_extras(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlxtend", None)
    assert main(["quickstart", "--out", str(tmp_path / "out")]) == 1
    assert 'needs mlxtend: pip install "scale-disco[train,plot,demo]"' in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# Headless browsers are at least 500 pixels wide; a frame may be as narrow as a phone.
FRAME = """<!doctype html><iframe id="frame" src="report.html" style="width: {width}px; height: 900px"></iframe><script>
onload = () => {{
  const page = document.getElementById("frame").contentDocument;
  const figures = [...page.images].map(i => [i.complete, i.naturalWidth, i.getBoundingClientRect().width]);
  const boxes = [page.documentElement, ...page.querySelectorAll(".wide, pre")];
  const wide = Math.max(...boxes.map(box => box.scrollWidth - box.clientWidth));
  document.body.append(Object.assign(document.createElement("p"), {{
    id: "probe", textContent: JSON.stringify({{figures, wide, boxes: boxes.length}})}}));
}};
</script>"""


@pytest.mark.thorough
@pytest.mark.parametrize("width", [375, 1000])
def test_a_browser_shows_all_figures(done, tmp_path, width):
    browser = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    shutil.copy(done / "report.html", tmp_path)
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(width=width))
    call = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--timeout=20000"]
    call += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1200,900"]
    call += ["--allow-file-access-from-files", "--dump-dom", frame.as_uri()]
    ended = subprocess.run(call, capture_output=True, text=True, timeout=PATIENCE)
    assert "CONSOLE" not in ended.stderr
    match = re.search(r'<p id="probe">(.*?)</p>', ended.stdout)
    assert match, ended.stderr[-2000:]
    probe = json.loads(match[1])
    assert len(probe["figures"]) == 4
    for complete, natural, shown in probe["figures"]:
        assert complete
        assert natural > 0
        assert 200 < shown <= width
    assert probe["boxes"] == 1 + 3 + 5  # the page, its tables and its commands
    assert probe["wide"] <= 0  # no horizontal overflow


@pytest.mark.slow
def test_disco_is_best_at_unseen_scales(tmp_path):
    """With the default settings."""
    assert main(["quickstart", "--out", str(tmp_path)]) == 0
    results = figures_of(tmp_path)
    means = {name: sum(network["unseen"]) / len(network["unseen"]) for name, network in results["networks"].items()}
    assert min(means, key=means.get) == "DISCO"
    errors = results["equivariance"]["errors"]
    for source in ("photographs", "digits"):
        assert min(errors, key=lambda name: errors[name][source]) == "DISCO"
