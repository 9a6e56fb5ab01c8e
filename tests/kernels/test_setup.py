"""The state machine of setup: what it takes, freezes, refuses and forgets."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from moeprof.errors import SpecError
from moeprof.kernels import get_ep_size, is_internode, reset_runtime, set_ep_group, setup
from moeprof.kernels.runtime.expert_parallel import MODE_VARIABLE, LaunchMode, frozen_state

from .moe_cases import draw, mesh_of, on_ranks, round_trip

pytestmark = pytest.mark.cpu("eight virtual devices")


def mesh_4x2() -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(jax.devices()).reshape(4, 2), ("expert", "fsdp"))


@pytest.mark.parametrize("ask", [get_ep_size, is_internode, frozen_state])
def test_asking_before_setup_says_that_setup_is_missing(ask):
    with pytest.raises(RuntimeError, match="setup\\(\\) must be called before"):
        ask()


def test_without_a_mesh_all_devices_of_the_process_are_one_group():
    setup()
    assert get_ep_size() == 8
    assert is_internode() is False
    assert frozen_state().groups.members == ((0, 1, 2, 3, 4, 5, 6, 7),)


def test_the_state_is_frozen_and_has_the_fields_of_primus_turbo():
    setup(num_sms=32)
    state = frozen_state()
    assert (state.mode, state.launch_mode) == (LaunchMode.INPROC, 0)
    assert (state.num_sms, state.source_meta_bytes) == (32, 0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.ep_size = 4


def test_a_mesh_makes_one_group_per_line_along_its_expert_axis():
    setup(mesh=mesh_4x2())
    assert get_ep_size() == 4
    assert frozen_state().groups.members == ((0, 2, 4, 6), (1, 3, 5, 7))


@pytest.mark.parametrize("ranks", range(1, 9))
def test_every_ep_size_from_1_to_8_is_taken(ranks: int):
    setup(mesh=mesh_of(ranks))
    assert get_ep_size() == ranks


def test_the_same_setup_again_is_no_error():
    setup(mesh=mesh_4x2(), num_sms=32)
    setup(mesh=mesh_4x2(), num_sms=32)
    assert get_ep_size() == 4


def test_a_different_setup_is_refused_and_says_what_changed():
    setup(num_sms=32)
    with pytest.raises(RuntimeError, match=r"different configuration: num_sms changed \(was \[32"):
        setup(num_sms=64)


def test_reset_forgets_everything_and_restores_64_units():
    setup(mesh=mesh_4x2(), num_sms=32)
    reset_runtime()
    setup()
    assert (get_ep_size(), frozen_state().num_sms) == (8, 64)


def test_a_program_traced_before_a_reset_follows_the_new_groups():
    tokens = draw(8, 6, 2, 16)
    run = on_ranks(round_trip, mesh_of(8))
    setup()
    run(tokens.x, np.maximum(tokens.topk_idx, 0))
    reset_runtime()
    with pytest.raises(RuntimeError, match="setup\\(\\) must be called"):
        run(tokens.x, np.maximum(tokens.topk_idx, 0))


def test_mesh_and_ranks_together_are_refused():
    with pytest.raises(ValueError, match="Pass either `mesh` or `ep_ranks`, not both"):
        setup(mesh=mesh_4x2(), ep_ranks=[0])


def test_an_unknown_mode_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"`mode` must be one of .*inproc.*per_process.*'both'"):
        setup(mode="both")


def test_per_process_needs_a_process_per_device():
    with pytest.raises(ValueError, match="one process with 8 devices"):
        setup(mode="per_process")


def test_inproc_needs_a_single_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="needs a single process, found 2"):
        setup(mode="inproc")


def test_a_mode_of_the_environment_counts_like_an_argument(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(MODE_VARIABLE, "inproc")
    setup()
    monkeypatch.setenv(MODE_VARIABLE, "per_process")
    with pytest.raises(RuntimeError, match="different configuration: mode"):
        setup()


def test_ranks_inside_one_process_are_ignored_with_a_warning():
    with pytest.warns(UserWarning, match="mean nothing inside one process"):
        setup(ep_ranks=[0])
    assert get_ep_size() == 8


def test_a_mesh_without_the_axis_is_refused_with_its_axes():
    with pytest.raises(ValueError, match=r"axis of the mesh \('expert', 'fsdp'\), found 'ep'"):
        setup(mesh=mesh_4x2(), ep_axis_name="ep")


@pytest.mark.parametrize("num_sms", [63, 0, -2])
def test_an_odd_number_of_units_is_refused_with_the_nearest(num_sms: int):
    with pytest.raises(ValueError, match=rf"even number .* found {num_sms}.*Nearest valid"):
        setup(num_sms=num_sms)


class TwoNodes:
    """Stands in for what JAX says in processes of one device each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
        monkeypatch.setattr(jax, "process_count", lambda: processes)
        monkeypatch.setattr(jax, "local_device_count", lambda: 1)


def test_processes_of_one_device_choose_per_process_which_needs_gpus(monkeypatch):
    TwoNodes(monkeypatch, 8)
    # 64 units, EP 8, rows of 14,336 B: 1.0005 GiB, as published for Primus-Turbo.
    with pytest.raises(
        RuntimeError, match=r"EP 8 .*buffers of 1074271232 B.*one GPU per process; found JAX on cpu"
    ):
        setup(hidden_bytes=14_336)


def test_per_process_needs_the_row_size(monkeypatch):
    TwoNodes(monkeypatch, 8)
    with pytest.raises(ValueError, match="`hidden_bytes` is needed"):
        setup()


def test_one_process_is_no_group_of_processes(monkeypatch):
    monkeypatch.setattr(jax, "local_device_count", lambda: 1)
    with pytest.raises(ValueError, match=r"at least 2 processes, found 1\. Use mode='inproc'"):
        setup(mode="per_process", hidden_bytes=14_336)


def test_twelve_processes_are_refused_with_the_nearest_sizes(monkeypatch):
    TwoNodes(monkeypatch, 12)
    with pytest.raises(
        ValueError, match=r"multiple of 8, found 12. Nearest valid choices: 8 or 16"
    ):
        setup(hidden_bytes=14_336)


def test_a_pinned_group_sets_the_size_of_per_process(monkeypatch):
    TwoNodes(monkeypatch, 16)
    set_ep_group(range(4))
    with pytest.raises(RuntimeError, match="EP 4 would exchange tokens between processes"):
        setup(hidden_bytes=14_336)


def test_a_pinned_group_is_unique_includes_this_process_and_stays():
    with pytest.raises(ValueError, match=r"unique process indices including 0 .* found \(1, 2\)"):
        set_ep_group([1, 2])
    with pytest.raises(ValueError, match="unique"):
        set_ep_group([0, 0])
    set_ep_group([0, 1])
    set_ep_group([0, 1])
    with pytest.raises(RuntimeError, match=r"the EP group is \(0, 1\) already"):
        set_ep_group([1, 0])
    reset_runtime()
    set_ep_group([1, 0])


def test_errors_are_one_line_for_the_command_line():
    with pytest.raises(SpecError):
        get_ep_size()
    with pytest.raises(SpecError):
        setup(num_sms=7)


def test_a_setup_that_fails_pins_no_group(monkeypatch):
    TwoNodes(monkeypatch, 16)
    for ranks in ([0, 1], [0, 2]):
        with pytest.raises(RuntimeError, match="EP 2 would exchange tokens between processes"):
            setup(mode="per_process", ep_ranks=ranks, hidden_bytes=14_336)
    set_ep_group([0, 3])
