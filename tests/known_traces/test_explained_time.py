"""How much of the device time of real accelerators no rule explains."""

import pytest

from moeprof.analyzers import analyze


@pytest.mark.parametrize(
    "name",
    [
        "h100x2_moe_ragged.xplane.pb",
        "maxtext_h100x2_ds_ep2_cf125.xplane.pb.gz",
        "maxtext_h100x2_ds_ep2_cf125_nocmdbuf.xplane.pb.gz",
        "mi300x_jax_conv3d.xplane.pb",
    ],
)
def test_less_than_two_percent_stay_unexplained(opened, name):
    table = analyze(opened(name), ["breakdown"])["breakdown"].table
    is_unexplained = table["component"].isin(["unattributed", "other", "moe_other"])
    assert table["share"][is_unexplained].sum() < 0.02


def test_a_convolution_with_its_changes_of_layout_is_all_of_a_convolution(opened):
    table = analyze(opened("mi300x_jax_conv3d.xplane.pb"), ["breakdown"])["breakdown"].table
    assert table["share"][table["component"] == "convolution"].sum() == pytest.approx(1.0)


def test_collectives_of_maxtext_gather_weights_and_reduce_gradients(opened):
    """INDEX.md: per step 53 all-gathers and 28 reduce-scatters, of the experts' weights too."""
    trace = opened("maxtext_h100x2_ds_ep2_cf125_nocmdbuf.xplane.pb.gz")
    table = analyze(trace, ["breakdown"])["breakdown"].table
    shares = table.groupby("component")["share"].sum()
    assert shares["weight_gather"] > 0.1
    assert shares["gradient_reduce"] > 0.05
    assert shares["collectives"] < 0.01
