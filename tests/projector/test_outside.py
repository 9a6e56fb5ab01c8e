"""DeepEP's buffers, to the byte: the values that its own functions return."""

import pytest

from moeprof.projector.outside import nvl_bytes, rdma_bytes

HIDDEN = 7168 * 2


@pytest.mark.parametrize(
    ("ranks", "sms", "nvl", "rdma"),
    [
        (8, 64, 1_074_271_232, 0),
        (8, 32, 537_135_616, 0),
        (8, 20, 335_709_824, 0),
        (64, 64, 1_208_568_832, 1_176_162_304),
        (64, 32, 604_284_416, 588_081_152),
        (16, 64, 1_208_556_544, 294_040_576),
        (32, 64, 1_208_560_640, 537_675_776),
    ],
)
def test_buffers_of_a_row_of_7168_bfloat16(ranks: int, sms: int, nvl: int, rdma: int) -> None:
    assert nvl_bytes(ranks, HIDDEN, sms) == nvl
    assert rdma_bytes(ranks, HIDDEN, sms) == rdma
