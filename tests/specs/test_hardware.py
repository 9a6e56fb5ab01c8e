import pytest

from moeprof.errors import SelectionError
from moeprof.specs.hardware import amd_device, hardware_keys, hardware_of, load_hardware


def test_there_are_eighteen_devices_and_each_has_a_source():
    specs = [load_hardware(key) for key in hardware_keys()]
    assert len(specs) == 18
    assert all(spec.source and spec.confidence in ("high", "medium", "low") for spec in specs)
    assert all(spec.hbm_bytes > 2**33 and spec.hbm_bytes_per_s > 5e11 for spec in specs)


@pytest.mark.parametrize(
    ("model", "key"),
    [
        ("NVIDIA H100 80GB HBM3", "h100_sxm"),
        ("NVIDIA A100-SXM4-40GB", "a100_40"),
        ("NVIDIA A100-SXM4-80GB", "a100_80"),
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("NVIDIA GB200", "gb200"),
        ("TPU v5 lite", "tpu_v5e"),
        ("TPU v5", "tpu_v5p"),
        ("TPU v4", "tpu_v4"),
        ("TPU v6 lite", "tpu_v6e"),
        ("TPU7x", "tpu_v7"),
    ],
)
def test_a_device_is_known_by_the_name_that_the_profiler_gives(model, key):
    assert hardware_of(model) == load_hardware(key)


@pytest.mark.parametrize(
    ("cores", "clock_khz", "memory_bytes", "key"),
    [
        (110, 1_700_000, 68_702_699_520, "mi250x"),
        (304, 2_100_000, 206_141_652_992, "mi300x"),
        (304, 2_100_000, 274_861_129_728, "mi325x"),
        (256, 2_200_000, 309_220_868_096, "mi350x"),
        (256, 2_400_000, 309_220_868_096, "mi355x"),
    ],
)
def test_an_amd_device_is_known_by_its_units_clock_and_memory(cores, clock_khz, memory_bytes, key):
    assert hardware_of(amd_device(cores, clock_khz, memory_bytes)) == load_hardware(key)


@pytest.mark.parametrize(
    "facts", [(304, 2_100_000, 2**37), (128, 2_400_000, 309_220_868_096), (0, 0, 0)]
)
def test_facts_that_no_device_has_name_none(facts):
    assert amd_device(*facts) == ""


@pytest.mark.parametrize("model", ["", "NVIDIA H100 PCIe", "NVIDIA GeForce RTX 4090", "cpu"])
def test_another_model_is_not_taken_for_one_that_is_known(model):
    assert hardware_of(model) is None


def test_a_key_that_is_not_there_names_those_that_are():
    with pytest.raises(SelectionError, match=r"'h100'; there are: mi250x, .*h100_sxm"):
        load_hardware("h100")


def test_a_peak_is_of_an_element_type():
    """A product in f32 may run in TF32 or not: no peak is told."""
    h100 = load_hardware("h100_sxm")
    assert h100.flops_per_s("bf16") == h100.flops_per_s("f16") == 989.4e12
    assert h100.flops_per_s("f8e4m3fn") == 1978.9e12
    assert h100.flops_per_s("f32") is None
    assert load_hardware("mi355x").flops_per_s("f4e2m1fn") == 10066e12


def test_a_die_that_is_a_device_has_half_of_its_package():
    """MI250X: 383 TFLOP/s and 3.2768 TB/s of two dies."""
    die = load_hardware("mi250x")
    assert (die.bf16_flops_per_s, die.hbm_bytes_per_s) == (191.5e12, 1.6384e12)
