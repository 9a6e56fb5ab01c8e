from __future__ import annotations

import dataclasses

import pytest

from moeprof.errors import SpecError
from moeprof.specs.plan import MEGATRON_AXES, ParallelPlan, fill_plan
from moeprof.specs.plan_checks import check_plan
from moeprof.specs.remat import Remat

from .test_model import SMALL


def with_experts(experts: int):
    return dataclasses.replace(SMALL, experts=experts)


def test_devices_is_the_product_of_the_degrees():
    assert ParallelPlan(data=2, fsdp=4, expert=8).devices == 64


def test_experts_that_do_not_divide_are_named_with_valid_degrees():
    with pytest.raises(SpecError, match=r"60 experts.*expert 64.*: 1, 2, 4\."):
        check_plan(ParallelPlan(expert=64), with_experts(60), 64)


def test_two_faults_give_two_complaints():
    # 24 divides neither 256 experts nor 64 devices.
    with pytest.raises(SpecError) as caught:
        check_plan(ParallelPlan(expert=24), with_experts(256), 64)
    message = str(caught.value)
    assert "256 experts cannot be split evenly over expert 24" in message
    assert "1 × 1 × 24 = 24 devices (data × fsdp × expert) but there are 64" in message


def test_a_mesh_of_another_size_is_told_the_fitting_fsdp():
    with pytest.raises(SpecError, match=r"1 × 1 × 4 = 4 devices.*there are 8; set fsdp to 2"):
        check_plan(ParallelPlan(expert=4), with_experts(8), 8)


def test_minus_one_takes_the_devices_that_are_left():
    assert fill_plan(8, fsdp=2, expert=-1) == ParallelPlan(fsdp=2, expert=4)


def test_minus_one_needs_a_whole_rest():
    with pytest.raises(SpecError, match=r"expert -1: 8 devices are not a multiple of 3.*fsdp 3"):
        fill_plan(8, fsdp=3, expert=-1)


def test_only_one_degree_can_be_the_rest():
    with pytest.raises(SpecError, match="only one degree may be -1, found fsdp and expert"):
        fill_plan(8, fsdp=-1, expert=-1)


def test_any_axis_may_be_the_rest():
    assert fill_plan(64, expert=8, tensor=2, data=-1).data == 4
    with pytest.raises(SpecError, match="multiple of 48, the product of expert 24 and tensor 2"):
        fill_plan(64, expert=24, tensor=2, data=-1)


def test_experts_are_no_factor_of_megatrons_devices():
    plan = fill_plan(64, tensor=2, pipeline=4, expert=8, data=-1, axes=MEGATRON_AXES)
    assert plan.data == 8
    with pytest.raises(SpecError, match="expert -1: experts are spread inside the other axes"):
        fill_plan(64, expert=-1, axes=MEGATRON_AXES)


def test_a_degree_of_zero_is_refused():
    with pytest.raises(SpecError, match="plan expert: expected at least 1, found 0"):
        ParallelPlan(expert=0)


def test_a_degree_that_is_no_integer_is_refused():
    with pytest.raises(SpecError, match=r"plan fsdp: expected an integer, found 2\.0"):
        ParallelPlan(fsdp=2.0)


def test_saved_names_are_read_in_order():
    assert Remat("save:out_proj,mlpwo").saved_names == ("out_proj", "mlpwo")
    assert Remat("full").saved_names == ()


@pytest.mark.parametrize("text", ["some", "save:", "save:attention", "full:out_proj"])
def test_an_unknown_remat_lists_the_names(text):
    with pytest.raises(SpecError, match=r"none, full, save:NAME.*query_proj.*mlpwo"):
        Remat(text)


def test_every_axis_is_a_factor_of_the_devices():
    plan = ParallelPlan(data=2, expert=4, tensor=2, context=2, pipeline=3, virtual=5)
    assert plan.devices == 96


def test_tensor_parallelism_inside_experts_divides_that_outside():
    assert ParallelPlan(tensor=4, expert_tensor=2).devices == 4
    with pytest.raises(SpecError, match=r"expert_tensor 4 does not divide tensor 2.*from 1, 2"):
        ParallelPlan(tensor=2, expert_tensor=4)
