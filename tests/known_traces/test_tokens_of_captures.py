"""Tokens of a step, as the published captures state their batches."""

import pytest

from moeprof.analyzers.load.batch import Batch, batch_of


@pytest.mark.parametrize(
    ("name", "batch"),
    [
        # 4096 tokens on each of 2 devices
        ("h100x2_moe_ragged.xplane.pb", Batch(8192, 2)),
        # 2 sequences of 2048 tokens on each; every device looks up the tokens of both, in half the
        # columns of the table
        ("maxtext_h100x2_ds_ep2_cf125.xplane.pb.gz", Batch(8192, 2)),
        ("maxtext_h100x2_ds_ep2_cf125_nocmdbuf.xplane.pb.gz", Batch(8192, 2)),
        ("mi300x_jax_conv3d.xplane.pb", None),  # a convolution of volumes
        ("gfx950_te_attention.xplane.pb", None),  # attention alone
    ],
)
def test_tokens_of_a_step(opened, name, batch):
    assert batch_of(opened(name)) == batch
