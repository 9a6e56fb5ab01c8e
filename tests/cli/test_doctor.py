"""Doctor says what is here and what to do about what is not."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from moeprof.cli import doctor
from moeprof.cli.doctor import (
    ABSENT,
    OK,
    WARNING,
    Check,
    as_text,
    capture_checks,
    gpu_checks,
    jax_checks,
    reader_checks,
)
from moeprof.errors import NativeError
from moeprof.ingest.xspace import native_library
from moeprof.recording import probe
from moeprof.recording.probe import Finding


def test_every_check_states_what_was_found():
    result = CliRunner().invoke(doctor.command, ["--json"])
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["schema"] == "moeprof.doctor/1"
    checks = {check["name"]: check for check in document["checks"]}
    assert {"python", "moeprof", "cores", "trace reader", "jax", "devices", "kernels"} <= set(
        checks
    )
    assert "capture" in checks
    assert checks["devices"]["found"] == "8 × cpu (cpu)"
    assert all(check["found"] for check in checks.values())


def test_without_jax_it_says_what_needs_it_and_how_to_get_it(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda package: None)
    (check,) = jax_checks()
    assert check.state == ABSENT
    assert "analysis does not" in check.found
    assert check.advice == "pip install 'moeprof[jax]'"


def test_a_folder_named_moeprof_does_not_answer_for_the_package(tmp_path, monkeypatch):
    """As a checkout is, in which no native library was built."""
    (tmp_path / "moeprof").mkdir()
    (tmp_path / "moeprof" / "__init__.py").write_text("raise SystemExit('another one')")
    monkeypatch.chdir(tmp_path)
    findings = probe.probe_machine()
    assert findings["devices"].found == "8 × cpu (cpu)"


@pytest.mark.parametrize(
    ("found", "state"),
    [("reference: slow twins in jnp, because: no library", WARNING), ("native_cpu: here", OK)],
)
def test_slow_twins_are_no_reason_for_a_tick(monkeypatch, found, state):
    findings = {name: Finding("here", None) for name in probe.PARTS}
    monkeypatch.setattr(
        probe, "probe_machine", lambda: {**findings, "kernels": Finding(found, None)}
    )
    checks = {check.name: check for check in jax_checks()}
    assert checks["kernels"].state == state


def test_it_imports_neither_jax_nor_pandas():
    code = (
        "import sys, moeprof.cli.doctor as doctor;"
        "doctor.python_checks(), doctor.optional_checks(), doctor.capture_checks({});"
        "print({'jax', 'pandas', 'plotly'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_without_its_library_the_plain_reader_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("MOEPROF_XSPACE_LIBRARY", str(tmp_path / "gone.so"))
    native_library.load.cache_clear()
    (check,) = reader_checks()
    native_library.load.cache_clear()
    assert (check.state, check.found) == (WARNING, "the plain one, in Python: slow")
    assert "gone.so, found nothing there. MOEPROF_XSPACE_LIBRARY names it" in check.advice


NO_LIBRARY = Finding("", None)
MISSED = Finding(None, "GPU library: expected /x.so, found nothing there. Build it.")


def test_a_gpu_library_is_missed_where_an_nvidia_gpu_is(tmp_path):
    (check,) = gpu_checks(NO_LIBRARY, MISSED, tmp_path)
    assert (check.state, check.found) == (ABSENT, "not needed: no NVIDIA GPU here")
    (tmp_path / "nvidiactl").touch()
    (check,) = gpu_checks(NO_LIBRARY, MISSED, tmp_path)
    assert (check.state, check.found) == (WARNING, "expected /x.so, found nothing there. Build it.")
    here = Finding("/x.so", None)
    (check,) = gpu_checks(here, here, tmp_path)
    assert (check.state, check.found) == (OK, "/x.so")


def test_a_gpu_library_that_loads_is_told_with_what_the_driver_says(tmp_path):
    here, unusable = Finding("/x.so", None), Finding(None, "no NVIDIA GPU: no driver")
    (check,) = gpu_checks(here, unusable, tmp_path)
    assert (check.state, check.found) == (ABSENT, "/x.so loads; no NVIDIA GPU: no driver")
    (tmp_path / "nvidiactl").touch()
    (check,) = gpu_checks(here, unusable, tmp_path)
    assert (check.state, check.found) == (WARNING, "/x.so loads; no NVIDIA GPU: no driver")


@pytest.mark.parametrize(
    ("variable", "name"),
    [("MOEPROF_GPU_LIBRARY", "GPU library"), ("MOEPROF_NATIVE_LIBRARY", "native library")],
)
@pytest.mark.parametrize("content", [None, "no library"])
def test_a_variable_that_names_no_library_is_blamed(monkeypatch, tmp_path, variable, name, content):
    path = tmp_path / "x.so"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv(variable, str(path))
    (check,) = [check for check in jax_checks() if check.name == name]
    assert check.state == WARNING
    assert str(path) in check.found
    assert f"{variable} names it: set that to a library that was built" in check.found
    assert "compiler" not in check.found


def test_a_platform_that_jax_has_not_is_named(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "banana")
    (check,) = [check for check in jax_checks() if check.name == "devices"]
    assert check.state == WARNING
    assert "banana" in check.found


def test_an_assertion_of_jax_without_a_text_names_the_platform(monkeypatch):
    def devices() -> None:
        raise AssertionError

    monkeypatch.setattr("jax.devices", devices)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    with pytest.raises(NativeError, match=r"^JAX_PLATFORMS=cuda: JAX has no such backend here$"):
        probe._devices()


def test_an_amd_gpu_is_told_that_our_kernels_never_ran_on_one(tmp_path):
    (tmp_path / "kfd").touch()
    *_, check = gpu_checks(NO_LIBRARY, MISSED, tmp_path)
    assert (check.name, check.state) == ("AMD GPU", WARNING)
    assert "never run" in check.found


def test_an_obstacle_to_capture_is_named():
    (check,) = capture_checks({"JAX_ENABLE_PGLE": "true"})
    assert (check.state, check.found) == (WARNING, "pgle")


def test_text_keeps_to_80_columns_and_puts_advice_below():
    lines = as_text(
        [Check("jax", ABSENT, "word " * 30, "pip install it"), Check("python", OK, "3")]
    )
    assert lines[0].startswith("- jax     word")
    assert max(map(len, lines)) <= 80
    assert lines[-2] == "          → pip install it"
    assert lines[-1] == "✓ python  3"
