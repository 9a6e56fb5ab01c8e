"""One MaxText program without and with XLA's command buffers: every figure worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from moeprof.analyzers import analyze
from moeprof.analyzers.comparison.changes import PARTS
from moeprof.analyzers.comparison.compare import Comparison, compare

WITH, WITHOUT = (f"maxtext_h100x2_ds_ep2_cf125{kind}.xplane.pb.gz" for kind in ("", "_nocmdbuf"))


@pytest.fixture(scope="module")
def found(opened) -> Comparison:
    return compare(opened(WITHOUT), opened(WITH))


def test_the_step_is_the_interval_and_only_idle_time_changed_by_much(found):
    """Two steps of each have one interval: from the start of the first to that of the second."""
    step = found.step.set_index("part")
    # steps begin with jit__multi_slice, which the host launches inside the annotation
    assert step.loc["step", "base_ns"] == 115_442_861 - 52_107_731
    assert step.loc["step", "new_ns"] == 117_909_186 - 57_404_426
    assert step.loc["step", "change_ns"] == -2_830_370.0
    # idle in the first step with command buffers: 7,655,532 and 7,907,757 ns
    assert step.loc["idle", "new_ns"] == 7_781_644.5
    # compute in it: 47,373,154 and 47,267,113 ns, without the copies that graphs run as kernels
    assert step.loc["compute", "new_ns"] == 47_320_133.5
    # the first step lasts 62,353,760 and 60,232,818 ns: what remains lies between the two
    between = step.loc[["between_idle", "between_other"]].sum()
    assert between["base_ns"] == 63_335_130 - 62_353_760
    assert between["new_ns"] == 60_504_760 - 60_232_818
    assert step["change_ns"].iloc[1:].sum() == -2_830_370.0


def test_one_interval_of_each_cannot_tell_the_change_from_noise(found):
    step = found.step.set_index("part").loc["step"]
    assert np.isnan(step["noise_ns"])
    assert step["verdict"] == "noise not known"


def test_memory_is_the_published_one(found):
    memory = found.memory.set_index("part")
    assert memory.loc["peak", "base_bytes"] == memory.loc["peak", "new_bytes"] == 5_907_350_522
    assert memory.loc["argument", "base_bytes"] == 2_009_196_532
    assert memory.loc["temp", "base_bytes"] == 3_898_152_944


def test_every_op_of_the_program_is_found_in_the_other(found):
    """What is only in one are copies of the runtime, and small programs between the steps."""
    ops = found.rows[found.rows["level"] == "op"]
    alone = ops[ops["match"].isin(["only in base", "only in new"])]
    assert alone["change_ns"].abs().sum() < 4_000
    # 53 all-gathers, 8 all-reduces, 2 all-to-alls and 28 reduce-scatters
    exchanges = ops[ops["op"].isin(["all-gather", "all-reduce", "all-to-all", "reduce-scatter"])]
    assert exchanges["base_calls"].sum() == exchanges["new_calls"].sum() == 91


@pytest.mark.parametrize(("name", "column"), [(WITHOUT, "base_ns"), (WITH, "new_ns")])
def test_components_take_what_the_breakdown_says(opened, found, name, column):
    told = analyze(opened(name), ["breakdown"])["breakdown"].table
    sums = told.groupby("component")["per_step_ns"].sum()
    parts = found.rows[found.rows["level"] == "component"].set_index("component")[column]
    assert parts.to_dict() == pytest.approx(sums[parts.index].to_dict(), abs=1)


def test_the_same_run_twice_has_no_change(opened):
    same = compare(opened(WITH), opened(WITH))
    assert (same.rows["change_ns"] == 0.0).all()
    assert (same.step["change_ns"] == 0.0).all()
    assert set(same.rows["match"]) == {"same", ""}


def test_a_copy_without_its_program_is_not_compared_by_component(opened):
    """In JSON no op has a program: its time would look like work that went."""
    names = [f"h100x2_moe_ragged.{ending}" for ending in ("xplane.pb", "trace.json.gz")]
    half = compare(*map(opened, names))
    assert half.rows["level"].tolist() == ["total"]
    assert not half.is_whole
    assert any("components are not compared" in note for note in half.notes)
    assert half.rows[list(PARTS)].isna().all(axis=None)
    assert abs(half.step.set_index("part").loc["step", "change_share"]) < 1e-4
