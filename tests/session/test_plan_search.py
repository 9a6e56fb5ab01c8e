"""A search with runs of the user's, and with the compiler asked for the best plans."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest

import moeprof
from moeprof.analyzers.heap.at_peak import AT_PEAK
from moeprof.cli import main as command_line
from moeprof.errors import CompileError, SelectionError
from moeprof.projector.compiled.result import CompiledPlan
from moeprof.reports.search import words
from moeprof.reports.search.terminal import drawn
from moeprof.session import plan_search
from moeprof.session.plan_search import checked
from moeprof.tables.compiled_memory import CompiledMemory

GIB = 2**30
ARGUMENTS = {"hardware": "h100_sxm", "strategy": "sparse-gmm", "pdbs": 1}


def compiled(setting, total_bytes: int, library_bytes: int | None = None) -> CompiledPlan:
    """A plan of 4 GiB of arguments, all donated, and the rest arena."""
    memory = CompiledMemory(4 * GIB, 4 * GIB, 4 * GIB, total_bytes - 4 * GIB)
    return CompiledPlan(
        hardware=setting.hardware,
        devices=setting.plan.devices,
        memory=memory,
        outside={},
        buffers=AT_PEAK.frame(),
        timeline=np.zeros(0, dtype=np.int64),
        peak=-1,
        peak_op="",
        compiler="jaxlib 0.10.2",
        compile_s=1.0,
        library_temp_bytes=None if library_bytes is None else library_bytes - 4 * GIB,
    )


@pytest.fixture
def compiler(monkeypatch):
    """A compiler that needs as many GiB of each plan as a test says, in the order of asking."""
    sizes: list[tuple[int, ...] | str] = []
    asked = []

    def compile_bundled(setting):
        asked.append(setting)
        size = sizes[len(asked) - 1]
        if isinstance(size, str):
            raise CompileError(size)
        return compiled(setting, *(one * GIB for one in size))

    monkeypatch.setattr("moeprof.projector.compiled.bundled.compile_bundled", compile_bundled)
    monkeypatch.setattr("moeprof.projector.compiled.require_compiler", lambda _target: None)
    return sizes, asked


def test_the_largest_batch_is_found_with_the_compiler(monkeypatch, capsys):
    """From the closed form's on; here what the compiler lays out fits up to 3 more."""
    asked = {"fsdp": 16, "hardware": "h100_sxm", "strategy": "dense-cf1.25", "seq": 1024}
    plain = moeprof.memory("qwen3_30b_a3b", framework="bundled", **asked).document
    start = plain["largest_pdbs_with_room"]["dense-cf1.25"]
    tried = []

    def compile_bundled(setting):
        tried.append(setting.pdbs)
        return compiled(setting, (30 if setting.pdbs <= start + 3 else 90) * GIB)

    monkeypatch.setattr("moeprof.projector.compiled.bundled.compile_bundled", compile_bundled)
    given = [word for name, value in asked.items() for word in (f"--{name}", str(value))]
    words = ["moeprof", "memory", "--model", "qwen3_30b_a3b", *given]
    monkeypatch.setattr("sys.argv", [*words, "--compile", "--pdbs", "auto", "--json"])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert not ended.value.code
    found = json.loads(capsys.readouterr().out)
    assert tried[0] == start
    best = max(pdbs for pdbs in tried if pdbs <= start + 3)
    assert start < best
    assert found["detail"] == {"strategy": "dense-cf1.25", "pdbs": best}
    (row,) = (one for one in found["rows"] if "compiled" in one)
    assert row["pdbs"] == best
    verdicts = [(pdbs, "fits" if pdbs <= start + 3 else "oom") for pdbs in tried]
    assert [(one["pdbs"], one["verdict"]) for one in row["compiled"]["tried"]] == verdicts
    assert row["compiled"]["notes"][0].startswith(f"pdbs, compiled one by one: {start} fits, ")


def test_what_the_compiler_finds_out_of_memory_comes_last(compiler):
    sizes, asked = compiler
    sizes += [(90,), (20, 30), "compile: the compiler took more than 900 s"]
    found = moeprof.search("qwen3_30b_a3b", 16, top=5, compile_top=3, **ARGUMENTS)
    plain = moeprof.search("qwen3_30b_a3b", 16, top=5, framework="bundled", **ARGUMENTS)
    assert found.document["inputs"]["framework"] == "bundled"  # whose step can be compiled
    assert [one.plan.fsdp for one in asked] == plain.plans["fsdp"][:3].tolist()
    assert [p["closed_form_rank"] for p in found.document["plans"]] == [2, 3, 4, 5, 1]
    assert found.plans["rank"].tolist() == [1, 2, 3, 4, 5]
    assert found.plans["compiled_verdict"].tolist()[:2] == ["fits", "unknown"]
    best, last = found.document["plans"][0], found.document["plans"][-1]
    assert best["compiled"]["peak_range_bytes"] == [20 * GIB, 30 * GIB]
    assert last["compiled"]["verdict"] == "oom"
    text = " ".join(str(found).split())
    assert "1 of them out of memory by it, so moved behind the others" in text
    assert "by XLA's compiler it fits too" in text
    assert "20.0 to 30.0 GiB compiled, of 73.6 GiB: ✓ fits" in text
    assert "not compiled: compile: the compiler took more than 900 s" in text
    assert max(map(len, str(found).splitlines())) <= 80
    json.loads(found.to_json())


def test_where_all_that_were_compiled_are_out_of_memory(compiler):
    sizes, _ = compiler
    sizes += [(90,), (91,)]
    found = moeprof.search("qwen3_30b_a3b", 16, top=3, compile_top=2, **ARGUMENTS)
    assert [p["closed_form_rank"] for p in found.document["plans"]] == [3, 1, 2]
    assert "the best now was not checked" in words.compiled_lines(found.document)[0]


def test_columns_are_as_wide_as_what_they_hold():
    found = moeprof.search("qwen3_30b_a3b", 16, top=2, **ARGUMENTS).document
    first, second = found["plans"]
    first |= {"tokens_per_s_per_device": 12_345.0, "margin": 0.123, "pdbs": 12, "microbatches": 128}
    first["tokens_per_s_per_device_range"] = [9_876.0, 123_456.0]
    second |= {"tokens_per_s_per_device": 900.0, "margin": 0.05, "pdbs": 1, "microbatches": 1}
    second["tokens_per_s_per_device_range"] = [800.0, 1_000.0]
    lines = drawn(found).plain.splitlines()
    at = next(n for n, line in enumerate(lines) if line.endswith("pdbs  plan"))
    head, *plans = lines[at : at + 3]
    for name, *cells in (
        ("tokens/s", "12,345", "900"),
        ("likely", "9,876–123,456", "800–1,000"),
        ("free", "12.3 %", "5.0 %"),
        ("pdbs", "12×128", "1"),
    ):
        end = head.index(name) + len(name)
        for line, cell in zip(plans, cells, strict=True):
            assert line[:end].endswith(f" {cell}")
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("size", [(20,), (90,), (70, 80)])
def test_the_surest_plan_is_none_that_the_compiler_doubts(compiler, tmp_path, size):
    """A run of FSDP alone: that plan's band, ± 0.2, is the narrowest. Of 73.6 GiB."""
    sizes, _ = compiler
    sizes += [(20,), (20,), size, (20,)]
    time = {"model": "Qwen3-30B-A3B", "split": ["fsdp"], "measured_s": 2.2, "estimated_s": 2.0}
    file = correction(tmp_path, **time, run="runs/one", steps=12)
    file.write_text(file.read_text().replace('"world": "maxtext"', '"world": "bundled"'))
    asked = {**ARGUMENTS, "framework": "bundled", "correction": file, "pp": 1, "tp": 1, "cp": 1}
    plain = moeprof.search("qwen3_30b_a3b", 16, top=1000, **asked).document
    found = moeprof.search("qwen3_30b_a3b", 16, top=4, compile_top=4, **asked).document
    assert [plan["plan"]["fsdp"] for plan in plain["plans"][:4]] == [8, 1, 16, 1]
    slow = {
        str(plan["plan"]): plan["tokens_per_s_per_device_range"][0]
        for plan in plain["plans"]
        if plan["verdict"] == "fits" and (size == (20,) or plan["plan"]["fsdp"] != 16)
    }
    surest, best = found["surest"], found["plans"][0]
    first = max(slow, key=slow.__getitem__)
    assert (best if surest is None else surest)["plan"] == json.loads(first.replace("'", '"'))
    assert surest is None or surest["rank"] != 0
    if size == (20,):
        assert (surest["rank"], surest["compiled"]["verdict"]) == (3, "fits")


def test_a_range_across_the_limit_is_borderline(compiler):
    setting = moeprof.projector.request.wanted(
        moeprof.projector.request.config.Request(model="small", ep=2, pdbs="1", framework="bundled")
    ).setting
    limit = setting.hardware.hbm_bytes * 0.93 / GIB  # 73.56 of 79.1 GiB
    assert checked(compiled(setting, 60 * GIB), setting)["verdict"] == "fits"
    assert checked(compiled(setting, 60 * GIB, 80 * GIB), setting)["verdict"] == "borderline"
    assert checked(compiled(setting, int(1.06 * limit * GIB)), setting)["verdict"] == "oom"


ALONE = {"hardware": "h100_sxm", "strategy": "dense-cf1.25", "pdbs": 1, "seq": 512, "pp": 1,
         "cp": 1, "tp": 1, "dp": 1}  # fmt: skip


@pytest.mark.parametrize(
    ("devices", "fsdp", "options", "says"),
    [
        # 7.63 G parameters of a device · 3 · 2 B are 42.65 GiB, which a restore holds twice.
        (
            4,
            4,
            {},
            "it needs 85.3 of the pool's 73.6 GiB to restore a checkpoint, most of it for w",
        ),
        (4, 4, {"phases": "step", "mem_fraction": 0.6}, "it needs 72.0 of the pool's 47.5 GiB, mo"),
        # 0.01 · 79.1 GiB are left beside the pool, less than the context of 1,011 MiB.
        (16, 16, {"mem_fraction": 0.99}, "GiB beside the pool, more than is left there, most of i"),
    ],
)
def test_the_nearest_miss_names_the_phase_and_the_pool_that_it_misses(devices, fsdp, options, says):
    found = moeprof.search("qwen3_30b_a3b", devices, fsdp=fsdp, ep=1, **ALONE | options).document
    assert says in words.best_line(found)
    assert found["nearest"]["decides"]["verdict"] == "oom"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"compile_top": 1, "framework": "megatron"}, "expected a framework whose step can be"),
        ({"compile_top": 1, "framework": "mars"}, "framework: expected one of"),
        ({"compile_top": -1}, "compile_top: expected a whole number of at least 0"),
        ({"rank_by": "price"}, "rank-by: expected one of time, fit, found 'price'"),
        ({"compile_top": 1, "hardware": "a100_80"}, "its compiler cannot be had"),
    ],
)
def test_wrong_usage_is_one_line(options, says):
    with pytest.raises(SelectionError) as caught:
        moeprof.search("qwen3_30b_a3b", 16, **options)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def correction(tmp_path, **time: object):
    """A file with one run of qwen3_30b_a3b on 8 H100, whose arena took 1.1 times the projected."""
    evidence = {
        "run": "runs/one", "program": "jit_train_step", "device": "NVIDIA H100 80GB HBM3",
        "jax_version": "0.10.2", "date": "2026-03-01", "model": "Qwen3-30B-A3B", "devices": 8,
        "pdbs": 1, "sequence": 4096, "projected_temp_bytes": 10, "measured_temp_bytes": 11,
        "args_bytes": 3,
    }  # fmt: skip
    account = {"world": "maxtext", "strategy": "sparse-gmm", "remat": "full",
               "hardware": "h100_sxm", "factor": 1.1, "evidence": evidence}  # fmt: skip
    times = {"time": time} if time else {}
    file = tmp_path / "corrections.json"
    document = {"schema": "moeprof.memory_correction/1", "corrections": [account | times]}
    file.write_text(json.dumps(document))
    return file


def test_a_stored_run_calibrates_times_and_arenas(tmp_path):
    file = correction(
        tmp_path, model="Qwen3-30B-A3B", split=["fsdp", "expert"], measured_s=3.0, estimated_s=2.0,
        run="runs/one", steps=12,
    )  # fmt: skip
    asked = {**ARGUMENTS, "strategy": "sparse-gmm,sparse-gmm-deepep", "pp": 1, "cp": 1, "tp": "1,2"}
    found = moeprof.search("qwen3_30b_a3b", 16, top=50, correction=file, **asked)
    plain = moeprof.search("qwen3_30b_a3b", 16, top=50, rank_by="time", **asked)
    assert plain.document["basis"]["source"] == "assumed"
    basis = found.document["basis"]
    assert found.document["order"] == "time"
    assert (basis["source"], basis["factor"]) == ("calibrated", 1.5)
    assert "12 steps of runs/one took 1.50 times their estimate" in str(found).replace("\n", " ")
    assert found.notes[1] == "Arena of sparse-gmm, remat full: × 1.100, as runs/one took."
    keys = ["strategy", "fsdp", "expert", "data", "tensor", "context", "pipeline", "virtual"]
    both = found.plans.merge(plain.plans, on=keys, suffixes=("", "_plain"))
    assert len(both) > 5
    assert both["seconds"].to_numpy() == pytest.approx(1.5 * both["seconds_plain"].to_numpy())
    is_run = both["strategy"] == "sparse-gmm"
    arena = both["temp_bytes"] / both["temp_bytes_plain"]
    assert arena[is_run].to_numpy() == pytest.approx(1.1, abs=1e-6)
    assert arena[~is_run].to_numpy() == pytest.approx(1.0)
    near = both[is_run & both["fsdp"].gt(1) & both["expert"].gt(1) & both["tensor"].eq(1)
                & both["context"].eq(1) & both["pipeline"].eq(1) & both["data"].eq(1)]  # fmt: skip
    assert len(near)
    assert (near["seconds_high"] / near["seconds"]).to_numpy() == pytest.approx(1.2)


def test_the_next_command_projects_with_the_correction_too(tmp_path, monkeypatch, capsys):
    file = correction(tmp_path)
    found = moeprof.search("qwen3_30b_a3b", 16, correction=file, top=1, **ARGUMENTS).document
    argv = shlex.split(words.next_command(found))
    assert argv[-2:] == ["--correction", str(file)]
    monkeypatch.setattr("sys.argv", [*argv, "--json"])
    with pytest.raises(SystemExit):
        command_line.main()
    row, best = json.loads(capsys.readouterr().out)["rows"][0], found["plans"][0]
    # A factor of 1.1 is on the arena of both, in whole bytes of each of its rows there.
    assert row["temp_bytes"] == pytest.approx(best["temp_bytes"], abs=4)
    assert row["verdict"] == best["verdict"]
    plain = moeprof.search("qwen3_30b_a3b", 16, top=1, **ARGUMENTS).document
    assert "--correction" not in words.next_command(plain)


def test_each_plan_has_the_run_that_its_own_time_is_from(tmp_path):
    """Two runs, of 3.0 and of 1.1 times their estimates: a plan's is that of its strategy."""
    timed = {"model": "Qwen3-30B-A3B", "split": ["fsdp"], "estimated_s": 2.0}
    slow = correction(tmp_path, **timed, measured_s=6.0, run="slow-run", steps=10)
    stored = json.loads(slow.read_text())
    dense = stored["corrections"][0] | {"strategy": "dense-cf1.25"}
    dense["time"] = timed | {"measured_s": 2.2, "run": "dense-run", "steps": 7}
    slow.write_text(json.dumps(stored | {"corrections": [*stored["corrections"], dense]}))
    asked = {"hardware": "h100_sxm", "correction": slow, "pdbs": 1, "pp": 1, "cp": 1, "tp": 1}
    one = moeprof.search("qwen3_30b_a3b", 16, strategy="dense-cf1.25", **asked).document
    assert one["basis"]["factor"] == pytest.approx(1.1)
    assert "calibrated: 7 steps of dense-run took 1.10 times their" in words.order_line(one)
    assert "slow-run" not in words.order_line(one)
    both = "sparse-gmm,dense-cf1.25"
    two = moeprof.search("qwen3_30b_a3b", 16, strategy=both, top=50, **asked).document
    factors = {plan["strategy"]: plan["basis"]["factor"] for plan in two["plans"]}
    assert factors == {"dense-cf1.25": pytest.approx(1.1), "sparse-gmm": 3.0}
    assert two["basis"] == two["plans"][0]["basis"]
    assert "dense-run took 1.10 times their estimate; 10 steps of slow-run" in words.order_line(two)
    none = moeprof.search("qwen3_30b_a3b", 1, strategy="dense-cf1.25", **asked).document
    assert (none["plans"], none["basis"]["factor"]) == ([], pytest.approx(1.1))


def test_one_run_takes_the_correction_in_python_too(tmp_path):
    file = correction(tmp_path)
    asked = {"hardware": "h100_sxm", "fsdp": 8, "pdbs": 1}
    plain, corrected = (
        moeprof.memory("qwen3_30b_a3b", strategy="sparse-gmm", **asked, **more).document
        for more in ({}, {"correction": file})
    )
    sizes = [one["rows"][0]["temp_bytes"] for one in (plain, corrected)]
    factor = json.loads(file.read_text())["corrections"][0]["factor"]
    assert sizes[1] == pytest.approx(factor * sizes[0], rel=1e-6)
    assert corrected["searched_by"][-2:] == ["--correction", str(file)]


def test_a_correction_without_times_says_so(tmp_path):
    found = moeprof.search("qwen3_30b_a3b", 16, correction=correction(tmp_path), **ARGUMENTS)
    assert found.document["order"] == "fit"
    assert any("no step time of MaxText on NVIDIA H100" in note for note in found.notes)


def test_an_order_by_time_that_nothing_supports_says_so():
    found = moeprof.search("qwen3_30b_a3b", 16, rank_by="time", **ARGUMENTS)
    assert words.order_line(found.document).startswith("In the order of time, as asked, which")
    asked = moeprof.search("deepseek_v3", 64, hardware="mi355x", rank_by="fit", pdbs=4)
    assert "In the order of fit, as asked; times are measured" in words.order_line(asked.document)
    assert plan_search.Extras().rank_by is None
