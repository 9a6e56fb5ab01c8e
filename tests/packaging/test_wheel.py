"""A wheel made from the sdist holds the whole package and nothing beside it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str, **kwargs: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, **kwargs)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkout -> sdist -> wheel, with the build requirements of this environment."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(out), str(ROOT))
    (sdist,) = out.glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-q"]
    # Three sources at once, as many as a kernel has: most of the time of one goes to headers.
    for define in ("UNITY_BUILD=ON", "UNITY_BUILD_BATCH_SIZE=3"):
        pip += ["--config-settings", f"cmake.define.CMAKE_{define}"]
    run(*pip, "-w", str(out), str(sdist), cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel unpacked, as an installer would lay it."""
    target = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(target)
    return target


def python(site: Path, code: str) -> str:
    """Run `code` in an interpreter that sees the wheel and not the checkout.

    Without `site`, so that the hook of an editable install does not answer for the wheel.
    """
    paths = [str(site), sysconfig.get_path("purelib")]
    isolated = f"import sys; sys.path += {paths!r}; {code}"
    return run(sys.executable, "-P", "-S", "-c", isolated, cwd=site).strip()


def test_one_wheel_serves_every_python_3(wheel):
    assert wheel.name.split("-")[2:4] == ["py3", "none"]


def test_the_wheel_brings_only_moeprof_to_the_top_level(site):
    tops = {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")}
    assert tops == {"moeprof"}


def test_the_linked_packages_are_inside_and_import(site):
    code = "import moeprof.analyzers, moeprof.reports; print(moeprof.reports.__file__)"
    where = python(site, code)
    assert where == str(site / "moeprof" / "reports" / "__init__.py")


def test_templates_and_the_native_library_travel_along(site):
    assert list((site / "moeprof" / "reports" / "templates").iterdir())
    assert (site / "moeprof" / "native" / "libmoeprof_cpu.so").is_file()


def test_type_checkers_read_its_types(site):
    assert (site / "moeprof" / "py.typed").is_file()


def test_help_imports_nothing_heavy(site):
    code = (
        "import moeprof.cli.main as m; m.group.main(['--help'], standalone_mode=False); "
        "print(sorted({'jax', 'pandas', 'numpy', 'plotly', 'pyarrow', 'rich'} & set(sys.modules)))"
    )
    assert python(site, code).endswith("[]")


def test_every_pytest_of_an_environment_finds_the_gate(site):
    (told,) = site.glob("*.dist-info/entry_points.txt")
    assert "[pytest11]\nmoeprof = moeprof.pytest_plugin\n" in told.read_text()
    assert (site / "moeprof" / "pytest_plugin.py").is_file()
