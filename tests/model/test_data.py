from __future__ import annotations

import itertools

import numpy as np
import pytest

from moeprof.errors import SpecError
from moeprof.model.data import batches, load_text


def test_the_text_is_python_source_and_bounded():
    text = load_text(100_000)
    assert text.dtype == np.uint8
    assert len(text) == 100_000
    assert b"import" in text.tobytes()


def test_a_seed_gives_the_same_batches_again():
    first, second = (list(itertools.islice(batches(4, 16, seed=7), 3)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    other = next(batches(4, 16, seed=8))
    assert not np.array_equal(first[0], other)


def test_a_batch_holds_one_token_more_than_a_sequence():
    batch = next(batches(4, 16))
    assert batch.shape == (4, 17)
    assert batch.dtype == np.int32
    assert 0 <= batch.min() <= batch.max() < 256


def test_every_window_is_a_piece_of_the_text():
    row = next(batches(1, 32))[0].astype(np.uint8).tobytes()
    assert row in load_text().tobytes()


def test_a_sequence_longer_than_the_text_is_refused():
    with pytest.raises(SpecError, match="more than 1000000000 bytes"):
        next(batches(1, 10**9))
