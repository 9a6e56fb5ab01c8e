import pytest

from moeprof.errors import SelectionError
from moeprof.projector.compiled import load_target, target_keys
from moeprof.specs.hardware import hardware_keys, load_hardware


@pytest.mark.parametrize("key", target_keys())
def test_a_target_has_the_memory_and_bandwidth_of_its_hardware(key):
    hardware = load_hardware(key)
    text = load_target(hardware, 8).config
    fields = dict(line.strip().split(": ") for line in text.splitlines() if line.count(": ") == 1)
    # hardware.csv has GiB with one decimal.
    assert int(fields["device_memory_size"]) == pytest.approx(hardware.hbm_bytes, rel=1e-3)
    assert int(fields["memory_bandwidth"]) == pytest.approx(hardware.hbm_bytes_per_s, rel=1e-3)
    assert "runtime_version" in text
    assert "# Sources:" in text


def test_targets_are_hardware_and_have_hosts_of_eight():
    assert set(target_keys()) <= set(hardware_keys())
    h100 = load_hardware("h100_sxm")
    found = [load_target(h100, devices).topology for devices in (1, 4, 8, 64)]
    assert found == ["1x1x1", "1x1x4", "1x1x8", "1x8x8"]


def test_devices_that_fill_no_host_are_refused_with_the_nearest_that_do():
    with pytest.raises(SelectionError, match="choose 8 or 16"):
        load_target(load_hardware("h100_sxm"), 12)


def test_a_device_without_a_target_is_refused_with_those_there_are():
    with pytest.raises(SelectionError, match="h100_sxm"):
        load_target(load_hardware("tpu_v5p"), 8)
