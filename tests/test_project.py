"""The files around the code agree: Makefile, hooks, workflows, changelog, citation, and what the wheel contains."""

from __future__ import annotations

import datetime
import os
import re
import runpy
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import scale_disco
from scale_disco.models import packaged

yaml = pytest.importorskip("yaml", reason="reading YAML needs scale-disco[train]")

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
SECTIONS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")


def targets() -> set[str]:
    """The targets that the Makefile declares and defines."""
    [phony] = re.findall(r"^\.PHONY:(.*)$", MAKEFILE, flags=re.MULTILINE)
    defined = re.findall(r"^([a-z-]+):(?!=)", MAKEFILE, flags=re.MULTILINE)
    assert set(phony.split()) == set(defined)
    return set(defined)


def steps(workflow: Path) -> list[dict]:
    return [step for job in yaml.safe_load(workflow.read_text())["jobs"].values() for step in job["steps"]]


def values_of(tree: object, key: str) -> list:
    """All values of a key, at any depth; lists of values count as their values."""
    if isinstance(tree, list):
        return [value for item in tree for value in values_of(item, key)]
    if not isinstance(tree, dict):
        return []
    own = tree.get(key, [])
    return (own if isinstance(own, list) else [own]) + [v for item in tree.values() for v in values_of(item, key)]


def test_hooks_run_the_commands_of_make_check():
    [recipe] = re.findall(r"^check:.*\n((?:\t.+\n)+)", MAKEFILE, flags=re.MULTILINE)
    [folder] = re.findall(r"^BIN := (.+)$", MAKEFILE, flags=re.MULTILINE)
    commands = [line.strip().replace("$(BIN)", folder) for line in recipe.splitlines()]
    [repo] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repo["repo"] == "local"
    assert [hook["entry"] for hook in repo["hooks"]] == commands
    for hook in repo["hooks"]:  # on the whole project, whatever the commit changes
        assert (hook["language"], hook["pass_filenames"], hook["always_run"]) == ("system", False, True)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_targets_of_the_makefile(workflow):
    lines = [line for step in steps(workflow) for line in step.get("run", "").splitlines()]
    assert lines
    for line in lines:
        line = line.replace("${{ matrix.constraints }}", ".ci/lowest.txt").replace("${{ matrix.target }}", "test-core")
        command, *words = line.split()
        assert command == "make", f"{line}: add a target to the Makefile, so that everyone can run it"
        assert {word for word in words if "=" not in word} <= targets(), line
        done = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_workflows_cover_all_checks():
    lines = {line for workflow in WORKFLOWS for step in steps(workflow) for line in step.get("run", "").splitlines()}
    wanted = {f"make {target}" for target in ("check", "test", "test-rest", "coverage", "release", "docs")}
    assert wanted <= lines


def test_workflows_use_the_supported_versions_of_python():
    prefix = "Programming Language :: Python :: 3."
    supported = ["3." + line.removeprefix(prefix) for line in PROJECT["classifiers"] if line.startswith(prefix)]
    assert PROJECT["requires-python"] == f">={supported[0]}"
    jobs = {name: job for path in WORKFLOWS for name, job in yaml.safe_load(path.read_text())["jobs"].items()}
    assert jobs["test"]["strategy"]["matrix"]["python-version"] == supported
    used = {version for version in values_of(jobs, "python-version") if "matrix." not in version}
    assert used == set(supported)


def test_workflows_use_the_supported_versions_of_torch():
    [lowest] = [name.removeprefix("torch>=") for name in PROJECT["dependencies"] if name.startswith("torch>=")]
    jobs = [yaml.safe_load(path.read_text())["jobs"] for path in WORKFLOWS]
    files = [ROOT / name for name in values_of(jobs, "constraints")]
    assert [re.findall(r"^torch==(.+)$", file.read_text(), re.MULTILINE) for file in files] == [[f"{lowest}.0"], []]


def test_constraints_can_be_replaced(tmp_path):
    """Another file of constraints gives pip its versions, and the version of torch that is installed first."""
    for text, requirement in (("torch==2.4.1\n", "torch==2.4.1"), ("# none\n", "torch")):
        (tmp_path / "versions.txt").write_text(text)
        given = f"CONSTRAINTS={tmp_path / 'versions.txt'}"
        done = subprocess.run(
            ["make", "-n", "-B", given, ".venv/ready"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        [expression] = re.findall(r'--quiet "(\$\(grep.*\))"', done.stdout)
        echoed = subprocess.run(["sh", "-c", f'echo "{expression}"'], capture_output=True, text=True, check=True)
        assert echoed.stdout.strip() == requirement
        shown = subprocess.run(
            ["make", "--no-print-directory", "-f", "-", given, "shown"],
            input=MAKEFILE + "\nshown:\n\t@echo $$PIP_CONSTRAINT\n",
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert shown.stdout.strip() == str(tmp_path / "versions.txt")


def test_tools_of_the_dev_extra_are_pinned():
    pinned = set(re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    named = {re.split(r"[>=<\[]", name)[0] for name in PROJECT["optional-dependencies"]["dev"]}
    assert named <= pinned


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.name)
def test_issue_forms(form):
    content = yaml.safe_load(form.read_text())
    if form.name == "config.yml":
        assert isinstance(content["blank_issues_enabled"], bool)
        return
    assert content["name"]
    assert content["description"]
    identifiers = [field["id"] for field in content["body"]]
    assert len(identifiers) == len(set(identifiers))
    for field in content["body"]:
        assert field["type"] in ("input", "textarea", "dropdown", "checkboxes")
        assert field["attributes"]["label"]
    assert any(field.get("validations", {}).get("required") for field in content["body"])


def changelog_problems(text: str) -> list[str]:
    """What is wrong with the form of a changelog."""
    listed, versions, dates = [], [], []
    title, *lines = re.findall(r"^#.*$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE)
    if title != "# Changelog":
        listed.append(f"expected # Changelog, got {title!r}")
    sections: list[str] = []
    for line in lines:
        if line.startswith("## "):
            sections = []
            release = re.fullmatch(r"## \[(\d+)\.(\d+)\.(\d+)\] - (\d{4}-\d{2}-\d{2})", line)
            if release is None:
                if line != "## [Unreleased]" or versions:
                    listed.append(f"expected [Unreleased] first, or ## [1.2.3] - 2026-01-31, got {line!r}")
                continue
            versions.append(tuple(map(int, release.groups()[:3])))
            try:
                dates.append(datetime.date.fromisoformat(release[4]))
            except ValueError:
                listed.append(f"expected a date, got {line!r}")
        elif line.startswith("### "):
            if line[4:] not in SECTIONS or line[4:] in sections:
                listed.append(f"expected each of {', '.join(SECTIONS)} once, got {line!r}")
            sections.append(line[4:])
    if versions != sorted(set(versions), reverse=True) or dates != sorted(dates, reverse=True):
        listed.append("expected the newest version first")
    current = scale_disco.__version__
    if "## [Unreleased]" not in lines and not any(line.startswith(f"## [{current}] - ") for line in lines):
        listed.append(f"expected an entry for {current} or Unreleased")
    return listed


def test_changelog_has_its_form():
    assert changelog_problems((ROOT / "CHANGELOG.md").read_text()) == []


@pytest.mark.parametrize(
    "text",
    [
        "# News\n\n## [Unreleased]\n",
        "# Changelog\n\n## Unreleased\n",
        "# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2026-02-30\n",
        "# Changelog\n\n## [Unreleased]\n\n## [0.1.0]\n",
        "# Changelog\n\n## [Unreleased]\n\n### New\n",
        "# Changelog\n\n## [Unreleased]\n\n### Added\n\n### Added\n",
        "# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2026-01-01\n\n## [0.2.0] - 2026-01-02\n",
        "# Changelog\n\n## [0.0.1] - 2026-01-01\n",
    ],
)
def test_other_forms_of_a_changelog_are_refused(text):
    assert len(changelog_problems(text)) >= 1


def test_citation_agrees_with_the_release_and_the_readme():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["cff-version"], citation["type"]) == ("1.2.0", "software")
    assert (citation["title"], citation["license"]) == (PROJECT["name"], PROJECT["license"])
    assert citation["version"] == scale_disco.__version__
    assert f"## [{citation['version']}] - {citation['date-released']}\n" in (ROOT / "CHANGELOG.md").read_text()
    [paper] = citation["references"]
    readme = re.sub(r"[{}]", "", (ROOT / "README.md").read_text())
    assert f"= {paper['title']},\n" in readme
    names = " and ".join(f"{author['family-names']}, {author['given-names']}" for author in paper["authors"])
    assert f"= {names},\n" in readme
    assert f"= {paper['year']}\n" in readme


CHECK_WHEEL = runpy.run_path(str(ROOT / "tools" / "check_wheel.py"))
check_files = CHECK_WHEEL["check_files"]

INFO = "scale_disco-1.0.0.dist-info"
NEEDED = ("scale_disco/__init__.py", "scale_disco/py.typed", f"{INFO}/METADATA", f"{INFO}/licenses/LICENSE")
WEIGHTS = {f"{CHECK_WHEEL['WEIGHTS']}{path.name}": path for path in packaged.FOLDER.iterdir()}


def write_wheel(folder: Path, contents: dict[str, bytes]) -> Path:
    """Write a wheel with these files."""
    wheel = folder / "scale_disco-1.0.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return wheel


@pytest.mark.parametrize(
    ("names", "message"),
    [
        *((tuple(name for name in NEEDED if name != left_out), left_out) for left_out in NEEDED),
        ((*NEEDED, "tests/__init__.py"), "only, got tests"),
    ],
)
def test_incomplete_wheels_are_refused(names, message, tmp_path):
    contents = dict.fromkeys(names, b"") | {name: path.read_bytes() for name, path in WEIGHTS.items()}
    with pytest.raises(ValueError, match=re.escape(message)):
        check_files(write_wheel(tmp_path, contents))


@pytest.mark.parametrize("name", sorted(WEIGHTS))
def test_wheels_without_weights_their_cards_or_licenses_are_refused(name, tmp_path):
    contents = dict.fromkeys(NEEDED, b"") | {name: path.read_bytes() for name, path in WEIGHTS.items()}
    assert check_files(write_wheel(tmp_path, contents)) == "1.0.0"
    content = contents.pop(name)
    with pytest.raises(ValueError, match=rf"expected {name}.*, which it does not contain"):
        check_files(write_wheel(tmp_path, contents))
    if name.endswith(".safetensors"):
        with pytest.raises(ValueError, match=r"has sha256 \w{64}, its card \w{64}"):
            check_files(write_wheel(tmp_path, contents | {name: content[:-1]}))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = folder.glob("*.whl")
    return wheel


@pytest.mark.thorough
def test_the_first_use_of_a_wheel_needs_neither_training_nor_downloads(wheel, tmp_path):
    """As `make release` runs it in an empty environment; here its dependencies are those of this one."""
    for package in ("PIL", "matplotlib", "mlxtend"):
        pytest.importorskip(package)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environ |= {"PYTHONPATH": str(tmp_path / "site"), "HOME": str(tmp_path), "TORCH_HOME": str(tmp_path / "torch")}
    place = [sys.executable, "-P", "-c", "import scale_disco; print(scale_disco.__file__)"]
    run = [sys.executable, "-P", str(CHECK_WHEEL["FIRST_USE"]), str(tmp_path)]
    printed = []
    for command in (place, run):
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environ)
        assert done.returncode == 0, done.stdout + done.stderr
        printed.append(done.stdout)
    assert Path(printed[0].strip()) == tmp_path / "site" / "scale_disco" / "__init__.py"
    assert "first use: tracked with overlap 0." in printed[1]
    assert not (tmp_path / "torch").exists()


@pytest.mark.thorough
def test_wheel_is_built_with_all_files(wheel):
    assert check_files(wheel) == scale_disco.__version__
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("scale_disco/")}
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "src"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert packed == {name.removeprefix("src/") for name in tracked.splitlines()}
