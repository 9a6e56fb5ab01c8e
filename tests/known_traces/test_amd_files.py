"""Real files of AMD GPUs: what they consist of, and which devices they are of."""

from builders.as_amd import SEEN, names_in


def test_what_a_twin_may_have_is_what_the_real_files_have(data):
    found = [
        names_in((data / "traces" / f"{name}.xplane.pb").read_bytes())
        for name in ("gfx950_te_attention", "mi300x_jax_conv3d")
    ]
    for key, names in SEEN.items():
        assert names == found[0][key] | found[1][key], key


def test_a_device_without_a_name_is_known_by_its_units_clock_and_memory(opened):
    """256 units at 2,400 MHz and 287.98 GiB; 304 at 2,100 MHz and 191.98 GiB. Of the first file
    only one device tells them, the others are like it."""
    gfx950, mi300x = opened("gfx950_te_attention.xplane.pb"), opened("mi300x_jax_conv3d.xplane.pb")
    assert gfx950.devices["model"].tolist() == ["AMD Instinct MI355X"] * 8
    assert mi300x.devices["model"].tolist() == ["AMD Instinct MI300X"] * 8
