from __future__ import annotations

import pytest

from moeprof.errors import SpecError
from moeprof.model.layout import check_trainable
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.presets import load_preset, preset_names

from .builders import tiny


def test_what_is_implemented_passes():
    check_trainable(tiny(), ParallelPlan(data=2, fsdp=2, expert=2))


def test_most_published_models_can_be_trained():
    refused = {
        "deepseek_v3_mtp": "multi-token prediction",
        "qwen3_next_80b_a3b": "linear attention, attention gate",
        "minimax_m1": "linear attention",
    }
    for name in preset_names():
        if name in refused:
            with pytest.raises(SpecError, match=f"it has no {refused[name]}, which"):
                check_trainable(load_preset(name), ParallelPlan())
        else:
            check_trainable(load_preset(name), ParallelPlan())


def test_all_that_is_missing_is_named_in_one_line():
    model = tiny(mtp_layers=1, is_gated=False, name="Big")
    with pytest.raises(SpecError) as caught:
        check_trainable(model, ParallelPlan(tensor=2, pipeline=2))
    message = str(caught.value)
    for what in ("multi-token prediction", "feed-forward without gate", "tensor parallelism"):
        assert what in message
    assert "pipeline parallelism, which Big on this plan needs" in message
    assert "\n" not in message
