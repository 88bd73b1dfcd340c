from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import scale_disco.quickstart as module
from scale_disco.bench import LayerSetting
from scale_disco.cli import main
from scale_disco.data.pictures import pictures

for extra in ("matplotlib", "mlxtend", "lightning"):
    pytest.importorskip(extra, reason="the quickstart needs scale-disco[train,plot,demo]")

TRIAL = ["quickstart", "--seeds", "1", "--epochs", "1", "--limit", "96", "--threads", "2"]
# The same with small settings, for a process of its own.
SCRIPT = """
import sys
from tests.test_quickstart import smaller
if __name__ == "__main__":
    smaller()
    from scale_disco.cli import main
    sys.exit(main(sys.argv[1:]))
"""


def smaller():
    """Layers and pictures that take seconds."""
    module._LAYERS = (LayerSetting(1, 2, 2, 14, 3, module.BASIS[1]),) * 2
    module._COUNTS = range(1, 3)
    module.pictures = lambda source: pictures(source, count=2)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The folder of a quickstart; look, do not touch."""
    out = tmp_path_factory.mktemp("quickstart") / "first look"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_LAYERS", "_COUNTS", "pictures"):
            patch.setattr(module, name, getattr(module, name))
        smaller()
        assert main([*TRIAL, "--out", str(out)]) == 0
    return out


def figures_of(out):
    return json.loads((out / "report.json").read_text())


def test_all_is_measured_in_this_run(done):
    found = figures_of(done)
    assert found["complete"]
    assert found["training images"] == 96
    assert found["reused"] == 0
    assert set(found["networks"]) == {"DISCO", "SESN, Hermite", "CNN"}
    for name, model in module.NETWORKS.items():
        tested = json.loads((done / "runs" / f"{model.replace('/', '-')}-0" / "test.json").read_text())
        one = found["networks"][name]
        assert one["seen"] == [tested["errors"] / tested["images"]]
        assert one["parameters"] == 25_826
        assert sum(images for *_, images in one["curve"]) == 1_500 + 500 + 500
        (larger,), (smaller,), (unseen,) = one["larger"], one["smaller"], one["unseen"]
        assert unseen == pytest.approx((larger + smaller) / 2)
        count = [row for row in one["curve"] if row[0] == "larger"]
        assert larger == sum(row[3] for row in count) / sum(row[4] for row in count)
    errors = found["equivariance"]["errors"]
    assert min(errors, key=lambda name: errors[name]["photographs"]) == "DISCO"
    assert found["basis"]["milliseconds"] > 0
    assert [len(found["speed"][part]) for part in ("layers", "growth")] == [2, 2]


def test_report_shows_the_figures_and_needs_no_network(done):
    page = (done / "report.html").read_text()
    found = figures_of(done)
    assert page.count("<img ") == 4
    assert not re.findall(r"(?:src|href)=\"(?!data:|#)", page)
    assert "url(" not in page
    assert "<script" not in page
    text = re.sub(r"<[^>]*>", " ", page)
    for row in found["equivariance"]["errors"].values():
        assert all(f"{error:.4f}" in text for error in row.values())
    for row in found["speed"]["layers"]:
        assert f"{row['dense / ours']:.2f}" in text
    for one in found["networks"].values():
        assert f"{100 * one['unseen'][0]:.1f}" in text
    assert "Not measured yet" not in page


def test_a_second_call_keeps_what_was_trained(done, tmp_path, capsys, monkeypatch):
    out = tmp_path / "again"
    shutil.copytree(done, out)
    for name in ("_LAYERS", "_COUNTS", "pictures"):
        monkeypatch.setattr(module, name, getattr(module, name))
    smaller()
    assert main([*TRIAL, "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["reused"] == 3
    assert found["networks"] == figures_of(done)["networks"]
    assert "3 of these networks were trained by an earlier call" in (out / "report.html").read_text()


def start(out, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *TRIAL, "--out", str(out), *arguments],
        cwd=Path(__file__).resolve().parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # shells ignore it in the background
    )


def test_ctrl_c_leaves_a_report_and_no_process(tmp_path):
    """Stopped while networks are trained; the steps before are in the report, and so is the way on."""
    script = tmp_path / "stopped"
    process = start(script, "--epochs", "2000")
    while not list(script.glob("runs/*/epochs.csv")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    assert len(children) >= 2
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert f"what is done so far is in {script / 'report.html'}" in errors
    for _ in range(100):  # multiprocessing's own helper ends a moment later
        left = [child for child in children if Path(f"/proc/{child}").exists()]
        if not left:
            break
        time.sleep(0.1)
    assert left == []
    page = (script / "report.html").read_text()
    assert page.endswith("</html>\n")
    assert page.count("<img ") == 3
    assert page.count("Not measured yet") == 1
    assert f"disco quickstart --out {script}" in page
    assert not figures_of(script)["complete"]


def test_errors_of_training_are_one_line(done, tmp_path, capsys, monkeypatch):
    for name in ("_LAYERS", "_COUNTS", "pictures"):
        monkeypatch.setattr(module, name, getattr(module, name))
    smaller()
    out = tmp_path / "damaged"
    shutil.copytree(done, out)
    (out / "runs" / "digits-cnn-0" / "answers-last.npz").write_bytes(b"nothing")
    assert main([*TRIAL, "--out", str(out), "--quiet"]) == 1
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "training digits/cnn: ValueError" in errors
    assert "answers-last.npz: damaged" in errors
    found = figures_of(out)
    assert not found["complete"]
    assert found["equivariance"]["errors"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["--epochs", "0"], "--epochs must be at least 1, got 0"),
        (["--limit", "1"], "--limit must be at least 2, got 1"),
        (["--device", "cuda:7"], "--device must be one that this machine has"),
        (["--out", "file"], "cannot make the folder file: it is a file"),
    ],
)
def test_wrong_calls_are_refused_at_once(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert main(["quickstart", *arguments]) == 1
    out, errors = capsys.readouterr()
    assert (out, errors.count("\n")) == ("", 1)
    assert message in errors
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_missing_extras_are_answered_with_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlxtend", None)
    assert main(["quickstart", "--out", str(tmp_path / "out")]) == 1
    assert 'needs mlxtend: pip install "scale-disco[train,plot,demo]"' in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


PROBE = """<script>
window.addEventListener("load", () => {
  const pictures = [...document.images].map(one => [one.complete, one.naturalWidth, one.getBoundingClientRect().width]);
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  document.body.append(Object.assign(document.createElement("pre"), {
    id: "probe", textContent: JSON.stringify({pictures, wide, width: innerWidth})}));
});
</script>"""


@pytest.mark.parametrize("width", [390, 1200])
def test_a_browser_shows_all_pictures(done, tmp_path, width):
    browser = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    shown = tmp_path / "shown.html"
    page = (done / "report.html").read_text()
    frame = page.replace("</body>", f"{PROBE}</body>")
    assert frame != page
    shown.write_text(frame)
    call = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--timeout=20000"]
    call += [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900", "--dump-dom", shown.as_uri()]
    ended = subprocess.run(call, capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in ended.stderr
    probe = re.search(r'<pre id="probe">(.*?)</pre>', ended.stdout)
    assert probe, ended.stderr[-2000:]
    seen = json.loads(probe[1])
    assert len(seen["pictures"]) == 4
    for complete, natural, drawn in seen["pictures"]:
        assert complete
        assert natural > 0
        assert 200 < drawn <= seen["width"]
    assert seen["wide"] <= 0  # nothing sticks out sideways
