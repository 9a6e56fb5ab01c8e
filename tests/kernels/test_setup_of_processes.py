"""What setup decides where every rank is a process with a GPU of its own."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from moeprof.kernels import get_ep_size, is_internode, reset_runtime, set_ep_group, setup
from moeprof.kernels.backends import gpu_library
from moeprof.kernels.preflight import PreflightError
from moeprof.kernels.runtime import expert_parallel, process_group
from moeprof.kernels.runtime.ep_groups import EpGroups, require_groups_of_mesh
from moeprof.kernels.runtime.expert_parallel import LaunchMode, frozen_state
from moeprof.kernels.runtime.process_group import Agreement

pytestmark = pytest.mark.cpu("stand-ins for processes")


class Gpus:
    """Stands in for a job of processes that have a GPU each, as seen from one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, processes: int, here: int) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.monkeypatch = monkeypatch
        monkeypatch.setattr(jax, "process_count", lambda: processes)
        monkeypatch.setattr(jax, "process_index", lambda: here)
        monkeypatch.setattr(jax, "local_device_count", lambda: 1)
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        monkeypatch.setattr(gpu_library, "unavailable_reason", lambda: None)
        monkeypatch.setattr(expert_parallel, "agree", self._agree)
        monkeypatch.setattr(process_group, "join", self._join)
        monkeypatch.setattr(process_group, "leave", lambda: self.calls.append(("leave",)))

    def _agree(self, group: tuple[int, ...]) -> Agreement:
        return Agreement((group, tuple(rank + len(group) for rank in group)), "token")

    def _join(self, agreement: Agreement, group: tuple[int, ...], timeout_ms: int) -> None:
        self.calls.append(("join", agreement.token, group, timeout_ms))


def test_all_processes_are_one_group_by_default(monkeypatch):
    job = Gpus(monkeypatch, 4, here=2)
    monkeypatch.setenv("MOEPROF_EP_TIMEOUT_S", "7")
    setup(hidden_bytes=4096)
    state = frozen_state()
    assert job.calls == [("join", "token", (0, 1, 2, 3), 7000)]
    assert (state.mode, state.launch_mode) == (LaunchMode.PER_PROCESS, 1)
    assert (state.is_internode, state.source_meta_bytes, is_internode()) == (False, 0, False)
    assert (state.groups.of_processes, state.groups.mode) == (True, "per_process")
    assert (get_ep_size(), state.num_sms) == (4, 64)


def test_ranks_choose_the_group_and_every_process_knows_all_groups(monkeypatch):
    Gpus(monkeypatch, 4, here=1)
    setup(hidden_bytes=4096, ep_ranks=[1, 0])
    assert frozen_state().groups.members == ((1, 0), (3, 2))
    assert get_ep_size() == 2


def test_a_pinned_group_is_the_group(monkeypatch):
    job = Gpus(monkeypatch, 4, here=1)
    set_ep_group([1, 3])
    setup(hidden_bytes=4096)
    assert job.calls[0][2] == (1, 3)


def test_the_same_setup_again_joins_once_and_reset_leaves(monkeypatch):
    job = Gpus(monkeypatch, 2, here=0)
    setup(hidden_bytes=4096)
    setup(hidden_bytes=4096)
    assert [name for name, *_ in job.calls] == ["join"]
    reset_runtime()
    assert [name for name, *_ in job.calls] == ["join", "leave"]


def test_a_group_that_does_not_come_together_is_not_frozen(monkeypatch):
    Gpus(monkeypatch, 2, here=0)

    def never(*_: object) -> None:
        raise process_group.JoinError("EP rank 1 did not join within 7 s")

    monkeypatch.setattr(process_group, "join", never)
    with pytest.raises(RuntimeError, match="EP rank 1 did not join"):
        setup(hidden_bytes=4096)
    with pytest.raises(RuntimeError, match="must be called before"):
        get_ep_size()


@pytest.mark.parametrize(("found", "nearest"), [(4100, 4112), (0, 16), (-16, 16)])
def test_rows_that_are_no_multiple_of_16_bytes_are_refused(monkeypatch, found: int, nearest: int):
    Gpus(monkeypatch, 2, here=0)
    with pytest.raises(ValueError, match=f"multiple of 16, found {found}.*choice: {nearest}"):
        setup(hidden_bytes=found)


def test_groups_over_nodes_are_refused_with_what_is_missing(monkeypatch):
    Gpus(monkeypatch, 16, here=0)
    with pytest.raises(
        RuntimeError, match=r"EP 16 .* 294040576 B between nodes\); this build has no transport"
    ):
        setup(hidden_bytes=14_336)


def test_several_gpus_in_a_process_are_refused(monkeypatch):
    Gpus(monkeypatch, 2, here=0)
    monkeypatch.setattr(jax, "local_device_count", lambda: 4)
    with pytest.raises(RuntimeError, match=r"one GPU per process, found 4 .*local_device_ids"):
        setup(mode="per_process", hidden_bytes=4096)


def test_a_missing_library_is_the_reason(monkeypatch):
    Gpus(monkeypatch, 2, here=0)
    monkeypatch.setattr(gpu_library, "unavailable_reason", lambda: "the library is not there")
    with pytest.raises(RuntimeError, match="between nodes\\): the library is not there"):
        setup(hidden_bytes=4096)


def mesh_of_processes(*rows: tuple[int, ...]) -> SimpleNamespace:
    devices = np.empty((len(rows), len(rows[0])), object)
    for place, process in np.ndenumerate(np.array(rows)):
        devices[place] = SimpleNamespace(process_index=int(process), id=40 + int(process))
    shape = {"data": devices.shape[0], "expert": devices.shape[1]}
    return SimpleNamespace(devices=devices, axis_names=("data", "expert"), shape=shape)


def test_a_mesh_over_processes_must_have_the_ranks_of_setup(monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 2)
    groups = EpGroups(((1, 0), (2, 3)), "expert", of_processes=True)
    require_groups_of_mesh(groups, mesh_of_processes((1, 0), (2, 3)))
    with pytest.raises(PreflightError, match=r"in rank order, found \[\(3, 2\)\]"):
        require_groups_of_mesh(groups, mesh_of_processes((1, 0), (3, 2)))
