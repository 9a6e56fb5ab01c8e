from __future__ import annotations

import pytest

from moeprof.errors import SpecError
from moeprof.model.support import check_trainable
from moeprof.specs.plan import ParallelPlan

from .builders import tiny


def test_what_is_implemented_passes():
    check_trainable(tiny(), ParallelPlan(data=2, fsdp=2, expert=2))


def test_all_that_is_missing_is_named_in_one_line():
    model = tiny(mtp_layers=1, qk_norm="head", name="Big")
    with pytest.raises(SpecError) as caught:
        check_trainable(model, ParallelPlan(tensor=2, pipeline=2))
    message = str(caught.value)
    for what in ("multi-token prediction", "norm of queries and keys", "tensor parallelism"):
        assert what in message
    assert "pipeline parallelism, which Big on this plan needs" in message
    assert "\n" not in message
