"""The wheel and the sdist: what they hold, and that a wheel works where no checkout is near."""

import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import glassformer

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "glassformer"
STEM = f"glassformer-{glassformer.__version__}"


def run(*command: str | Path, cwd: Path) -> str:
    """Standard output of a command that must succeed; a failure shows everything it printed."""
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{command} exited {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel built from that sdist: what it lacks, the wheel lacks."""
    folder = tmp_path_factory.mktemp("dist")
    # Without isolation no registry is asked: the build backend is among the dev dependencies.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    return dist / f"{STEM}-py3-none-any.whl"


def test_wheel_holds_the_whole_package_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        f"glassformer/{path.relative_to(PACKAGE).as_posix()}"
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    info = f"{STEM}.dist-info/"
    assert {name for name in names if not name.startswith(info)} == sources
    assert "glassformer/py.typed" in names
    assert any(name.startswith("glassformer/presets/") and name.endswith(".yaml") for name in names)
    assert f"{info}licenses/LICENSE" in names


def test_sdist_can_be_tested_and_leaves_out_what_was_built(dist: Path) -> None:
    with tarfile.open(dist / f"{STEM}.tar.gz") as archive:
        names = {name.removeprefix(f"{STEM}/") for name in archive.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "constraints.txt", "Makefile"} <= names
    assert "tests/project/test_wheel.py" in names
    assert not {name.split("/")[0] for name in names} & {".venv", ".git", "runs", "dist", "build"}


def test_wheel_runs_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "empty"
    venv.create(home, with_pip=False)
    scripts = home / ("Scripts" if sys.platform == "win32" else "bin")
    python = scripts / "python"
    installed = Path(
        run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
    )
    pip = [sys.executable, "-m", "pip", "--python", python]
    run(*pip, "install", "--no-index", "--no-deps", wheel, cwd=tmp_path)
    # Borrow the dependencies. A path named in a .pth file has its own .pth files ignored, so the
    # checkout, installed there as editable, does not come along.
    (installed / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    where = run(python, "-c", "import glassformer; print(glassformer.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(installed)
    assert "train" in run(scripts / "glassformer", "--help", cwd=tmp_path)
