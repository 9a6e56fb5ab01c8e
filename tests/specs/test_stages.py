from __future__ import annotations

import dataclasses

import pytest

from moeprof.errors import SpecError
from moeprof.specs.model import LinearSpec
from moeprof.specs.parameters import parameter_count
from moeprof.specs.stages import (
    even_split,
    read_layout,
    split_stages,
    stage_parameters,
    stages_of_layout,
    whole_stages,
)

from .test_model import SMALL

EIGHT = dataclasses.replace(SMALL, layers=8, dense_layers=2, dense_ffn=12)


def sizes(model, stages):
    return [sum(p.size for p in stage_parameters(model, stage)) for stage in stages]


def test_an_uneven_split_gives_each_stage_its_own_layers():
    stages = split_stages(EIGHT, 4, split=[1, 2, 2, 3])
    assert [s.layers for s in stages] == [(0,), (1, 2), (3, 4), (5, 6, 7)]
    assert [(s.dense_layers, s.moe_layers) for s in stages] == [(1, 0), (1, 1), (0, 2), (0, 3)]
    assert [s.has_embedding for s in stages] == [True, False, False, False]
    assert [s.has_head for s in stages] == [False, False, False, True]


def test_the_weights_of_all_stages_are_those_of_the_model():
    # Attention 8·16 + 2·(8·8) + 16·8 = 384, two norms 16: 400 per layer. Dense 3·8·12 = 288.
    # Router 8·4 + 4, four routed experts and a shared one of 3·8·8 = 192: 996.
    found = sizes(EIGHT, split_stages(EIGHT, 4, split=[1, 2, 2, 3]))
    embedding, head = 16 * 8, 16 * 8 + 8
    assert found == [embedding + 688, 688 + 1396, 2 * 1396, 3 * 1396 + head]
    assert sum(found) == parameter_count(EIGHT)


def test_what_does_not_divide_goes_to_the_chunks_after_the_first():
    assert even_split(61, 16) == (3, *(4,) * 13, 3, 3)
    assert even_split(8, 4) == (2, 2, 2, 2)


def test_chunks_go_round_the_stages():
    chunks = split_stages(EIGHT, 2, 2)
    assert [(c.stage, c.chunk, c.layers) for c in chunks] == [
        (0, 0, (0, 1)),
        (1, 0, (2, 3)),
        (0, 1, (4, 5)),
        (1, 1, (6, 7)),
    ]
    first, second = whole_stages(chunks)
    assert first.layers == (0, 1, 4, 5)
    assert (first.dense_layers, first.moe_layers) == (2, 2)
    assert (first.has_embedding, first.has_head) == (True, False)
    assert (second.layers, second.has_head) == ((2, 3, 6, 7), True)


def test_a_v_shaped_schedule_ends_on_the_first_stage():
    first, second = whole_stages(split_stages(EIGHT, 2, 2, schedule="zbv"))
    assert (first.layers, first.has_embedding, first.has_head) == ((0, 1, 6, 7), True, True)
    assert (second.layers, second.has_embedding, second.has_head) == ((2, 3, 4, 5), False, False)
    layout = stages_of_layout(EIGHT, "Ett|tt|tt|ttL", 2, 2, "v-min")
    assert [(c.stage, c.chunk) for c in layout] == [(0, 0), (1, 0), (1, 1), (0, 1)]


def test_a_layout_places_embedding_head_and_further_predictions():
    model = dataclasses.replace(EIGHT, mtp_layers=1)
    stages = stages_of_layout(model, "Et*3|t*5mL", 2)
    assert [(len(s.layers), s.mtp_layers, s.has_head) for s in stages] == [
        (3, 0, False),
        (5, 1, True),
    ]
    # The module reads the embedding, which the first stage owns.
    copies = [p.path for p in stage_parameters(model, stages[1]) if "copy" in p.path[0]]
    assert copies == [("embedding_copy",)]
    assert sum(sizes(model, stages)) == parameter_count(model) + 16 * 8


def test_a_tied_head_on_another_stage_is_a_copy():
    tied = dataclasses.replace(EIGHT, tied_head=True)
    stages = split_stages(tied, 2)
    assert sum(sizes(tied, stages)) == parameter_count(tied) + 16 * 8
    assert sum(sizes(tied, split_stages(tied, 1))) == parameter_count(tied)


def test_linear_and_softmax_layers_are_counted_where_they_lie():
    linear = LinearSpec(key_heads=2, key_dim=4, value_heads=4, value_dim=4, conv_width=4)
    model = dataclasses.replace(EIGHT, linear_layers=6, linear=linear)
    stages = split_stages(model, 2, split=[3, 5])
    assert [(s.linear_layers, s.softmax_layers) for s in stages] == [(3, 0), (3, 2)]
    assert sum(sizes(model, stages)) == parameter_count(model)


@pytest.mark.parametrize(
    ("text", "chunks"),
    [
        ("Et*7|t*7mL", "1 7 0 0, 0 7 1 1"),
        ("Et*3|(tt|)*2,m|L", "1 3 0 0, 0 2 0 0, 0 2 0 0, 0 0 1 0, 0 0 0 1"),
        ("E||((t|)*2t)*2L", "1 0 0 0, 0 0 0 0, 0 1 0 0, 0 1 0 0, 0 2 0 0, 0 1 0 0, 0 1 0 1"),
    ],
)
def test_a_layout_is_read_chunk_by_chunk(text, chunks):
    """Embeddings, layers, modules and heads of each chunk."""
    found = [" ".join(map(str, chunk)) for chunk in read_layout(text)]
    assert ", ".join(found) == chunks


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Et*x|L", r"found '\*'"),
        ("E(t|*2L", r"found '\('"),
        ("Etq|L", "found 'q'"),
        ("(t*9999)*9999", "at most 100,000 letters"),
        ("*3", r"found '\*'"),
    ],
)
def test_what_is_no_layout_is_refused(text, found):
    with pytest.raises(SpecError, match=found):
        read_layout(text)


def test_a_layout_of_another_model_names_all_that_differs():
    with pytest.raises(SpecError, match=r"3 chunks, not 2; 9 t \(layers\), not 8; 0 L \(head\)"):
        stages_of_layout(EIGHT, "Et*3|t*3|t*3", 2)


def test_a_split_that_does_not_add_up_is_refused_with_both_sums():
    with pytest.raises(SpecError, match=r"expected 2 counts.*8 layers, found 3.*9: 3, 3, 3"):
        split_stages(EIGHT, 2, split=[3, 3, 3])
    with pytest.raises(SpecError, match="8 layers are fewer than the 4 × 4 = 16 chunks"):
        split_stages(EIGHT, 4, 4)
