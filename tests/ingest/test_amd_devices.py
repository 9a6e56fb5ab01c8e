"""AMD's profiler names no device: it is known by what the plane says it has."""

import pytest
from builders.gpu import program
from builders.xspace import Plane, Ref, event, host, line, metadata, xspace

from moeprof.ingest import open_run

MI300X = {
    "device_vendor": "AMD",
    "core_count": 304,
    "clock_rate": 2_100_000,
    "memory_size": 206_141_652_992,
}


def models(folder, *stats):
    """Models of devices whose planes have these stats; the first ran a kernel."""
    work = line("Stream #3", event("fusion_1.kd", 10, 5, hlo_op=Ref("fusion.1"), program_id=7))
    planes = [
        Plane(f"/device:GPU:{device}", () if device else (work,), stats=facts)
        for device, facts in enumerate(stats)
    ]
    path = folder / "node0.xplane.pb"
    path.write_bytes(xspace(metadata(p7=program(["fusion.1"])), *planes, host()))
    return open_run(path).devices["model"].tolist()


def test_a_device_is_named_by_its_facts_and_those_beside_it_are_like_it(tmp_path):
    assert models(tmp_path, MI300X, {"device_vendor": "AMD"}) == ["AMD Instinct MI300X"] * 2


@pytest.mark.parametrize(
    "changed",
    [{"core_count": 100}, {"memory_size": 2**36}, {"clock_rate": 0}, {"device_vendor": "Other"}],
)
def test_a_device_that_no_table_knows_stays_without_a_name(tmp_path, changed):
    assert models(tmp_path, MI300X | changed) == [""]


def test_devices_of_two_models_lend_no_name_to_a_third(tmp_path):
    other = MI300X | {"memory_size": 274_861_129_728}
    found = models(tmp_path, MI300X, other, {"device_vendor": "AMD"})
    assert found == ["AMD Instinct MI300X", "AMD Instinct MI325X", ""]


def test_a_name_that_the_profile_states_is_taken(tmp_path):
    assert models(tmp_path, {"device_vendor": "Nvidia", "gpu_device_name": "NVIDIA H200"}) == [
        "NVIDIA H200"
    ]
