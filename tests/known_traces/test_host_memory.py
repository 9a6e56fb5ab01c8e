"""Programs that keep state or activations in the host's memory, with XLA's own statistics."""

from __future__ import annotations

import pytest

from moeprof.analyzers.comparison.compare import memory_changes
from moeprof.analyzers.heap.at_peak import main_module, on_host, peak_of
from moeprof.ingest import open_run
from moeprof.ingest.dump import open_dump

GIB = 1 << 30


@pytest.mark.parametrize(
    ("name", "device", "host"),
    [
        ("temp_on_host.xplane.pb", 47 * GIB, 7 * GIB),
        ("optimizer_on_host.xplane.pb", 13 * GIB, 18 * GIB),
        ("xla_activations.xplane.pb", 2_768_241_952, 805_306_368),
        ("xla_optimizer.xplane.pb", 2_768_242_468, 301_989_888),
        ("xla_activations", 2_768_241_952, 805_306_368),
        ("xla_optimizer", 2_768_242_468, 301_989_888),
        ("xla_activations_text", 2_768_241_952, 805_306_368),
        ("xla_optimizer_text", 2_768_242_468, 301_989_888),
    ],
)
def test_a_device_needs_what_does_not_lie_on_the_host(data, name, device, host):
    path = data / "cases" / "host_memory" / name
    trace = open_run(path) if name.endswith(".pb") else open_dump(path)
    module = main_module(trace)
    peak, held = peak_of(trace, module), on_host(trace, module)
    assert peak is not None
    assert held is not None
    assert (peak.total_bytes, held.total_bytes) == (device, host)


@pytest.mark.parametrize("form", ["", "_text"])
def test_moving_the_momentum_to_the_host_frees_its_arguments(data, form):
    folder = data / "cases" / "host_memory"
    base, new = (open_dump(folder / f"xla_{n}{form}") for n in ("activations", "optimizer"))
    changes = memory_changes(base, new).set_index("part")["change_bytes"]
    assert changes["peak"] == 516
    assert changes["argument"] == -301_989_888
