"""What each change buys is what another projection says, and overload is consistent with one."""

import dataclasses

import pytest

from moeprof.projector.frameworks.megatron.ranks import devices_of
from moeprof.projector.levers import fits_up_to_overload, levers
from moeprof.projector.memory import project
from moeprof.projector.setting import Precision, Setting, degrees_of
from moeprof.specs.hardware import load_hardware
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.presets import load_preset
from moeprof.specs.remat import Remat
from moeprof.specs.strategy import parse_strategy

GIB = 2**30


def deepseek(strategy: str, pdbs: int, **changes: object) -> Setting:
    return Setting(
        load_preset("deepseek3-671b"),
        ParallelPlan(fsdp=8, expert=8),
        parse_strategy(strategy),
        load_hardware("mi355x"),
        pdbs=pdbs,
        **changes,  # type: ignore[arg-type]
    )


def test_a_smaller_buffer_is_the_cheapest_lever_of_a_dropless_run() -> None:
    """Half the rows: 4 · 8 sequences · (5 · 0.4375 + 4 · 0.125) GiB less."""
    over = project(deepseek("sparse-gmm", 8))
    assert over.verdict == "oom"
    found = {lever.change: lever for lever in levers(over)}
    halved = found["ragged_buffer_factor 4"]
    assert halved.verdict == "fits"
    assert halved.saved_bytes == 4 * 8 * (5 * 0.4375 + 4 * 0.125) * GIB


def test_each_lever_is_another_projection() -> None:
    precision = Precision(gradients="float32", first_moment="float32")
    setting = deepseek("sparse-gmm", 8, precision=precision)
    setting = dataclasses.replace(
        setting, plan=ParallelPlan(fsdp=8, expert=8, remat=Remat("save_out_proj"))
    )
    before = project(setting)
    found = levers(before)
    assert {lever.change for lever in found} >= {
        "grad_dtype bfloat16",
        "mu_dtype bfloat16",
        "remat full",
        "offload of optimizer to the host",
        "CP 2, FSDP 4",
        "strategy sparse-gmm-deepep",
    }
    for lever in found:
        after = project(lever.setting)
        assert after.verdict == lever.verdict
        room = after.pool_bytes - (after.inside_bytes or 0)
        assert room - (before.pool_bytes - (before.inside_bytes or 0)) == lever.saved_bytes > 0


def test_levers_that_turn_the_verdict_come_first() -> None:
    verdicts = [lever.verdict for lever in levers(project(deepseek("sparse-gmm", 8)))]
    assert verdicts == sorted(verdicts, key=["fits", "borderline", "oom"].index)


@pytest.mark.parametrize(("strategy", "pdbs"), [("sparse-gmm", 8), ("sparse-gmm-deepep", 10)])
def test_a_run_at_the_overload_it_fits_up_to_fits(strategy: str, pdbs: int) -> None:
    worst = project(deepseek(strategy, pdbs))
    limit = fits_up_to_overload(worst)
    assert limit is not None
    assert 1 < limit < 8
    at, beyond = (project(deepseek(strategy, pdbs, overload=x)) for x in (limit, limit + 0.02))
    assert (at.inside_bytes or 0) <= at.pool_bytes < (beyond.inside_bytes or 0)
    assert fits_up_to_overload(at) == limit


def test_overload_where_the_worst_routing_fits_and_where_none_does() -> None:
    assert fits_up_to_overload(project(deepseek("sparse-gmm", 4))) == 8
    assert fits_up_to_overload(project(deepseek("sparse-gmm", 60))) == 0
    assert fits_up_to_overload(project(deepseek("dense-cf2", 4))) is None


@pytest.mark.parametrize("pdbs", [1, 60])
def test_one_rank_with_all_experts_has_no_overload(pdbs: int) -> None:
    """What fits there and what does not: no routing is uneven."""
    plan = ParallelPlan(fsdp=64)
    breakdown = project(dataclasses.replace(deepseek("sparse-gmm", pdbs), plan=plan))
    assert fits_up_to_overload(breakdown) is None


def mixtral(pdbs: int, **changes: object) -> Setting:
    """64 H100 in Megatron, experts over 8."""
    return Setting(
        load_preset("mixtral-8x7b"),
        ParallelPlan(data=64, expert=8),
        parse_strategy("sparse-gmm"),
        load_hardware("h100_sxm"),
        pdbs=pdbs,
        framework="megatron",
        **changes,  # type: ignore[arg-type]
    )


def test_where_the_allocator_keeps_a_share_of_what_it_gave_the_overload_leaves_it_room() -> None:
    limit = fits_up_to_overload(project(mixtral(16)))
    assert limit is not None
    assert 1 < limit < 4
    at, beyond = (project(mixtral(16, overload=x)) for x in (limit, limit + 0.02))
    assert (at.inside_bytes or 0) <= at.pool_bytes
    assert (beyond.inside_bytes or 0) > beyond.pool_bytes
    assert fits_up_to_overload(at) == limit


def test_no_rank_of_megatron_receives_more_than_the_worst_routing_sends() -> None:
    """8 experts, 2 of a token: all tokens on the same two ranks are 4 times an even share."""
    assert fits_up_to_overload(project(mixtral(1))) == 4


@pytest.mark.parametrize("framework", ["maxtext", "megatron"])
def test_another_plan_is_of_as_many_devices(framework: str) -> None:
    """Megatron's experts are spread within DP · CP · TP: 64 of DP 16 · CP 2 · FSDP 2."""
    plan = ParallelPlan(data=16, context=2, fsdp=2, expert=4)
    tight = Setting(
        load_preset("mixtral-8x7b"),
        plan,
        parse_strategy("sparse-gmm"),
        load_hardware("h100_sxm"),
        pdbs=64,
        framework=framework,
    )

    def devices(setting: Setting) -> int:
        degrees = degrees_of(setting)
        return int(devices_of(degrees)) if framework == "megatron" else setting.plan.devices

    found = levers(project(tight))
    assert {devices(lever.setting) for lever in found} == {devices(tight)}
    changed = {lever.change for lever in found if lever.setting.plan != plan}
    known = {
        "maxtext": {"EP 8, FSDP 1", "EP 2, FSDP 4", "CP 4, FSDP 1"},
        "megatron": {"EP 8", "CP 4, DP 8"},
    }[framework]
    assert changed
    assert changed <= known


def test_the_bundled_model_has_no_smaller_buffers() -> None:
    found = project(deepseek("sparse-gmm", 8, framework="bundled"))
    assert not [
        one.change for one in levers(found) if one.change.startswith("ragged_buffer_factor")
    ]
    assert not [note for note in found.notes if "ragged_buffer_factor" in note]
