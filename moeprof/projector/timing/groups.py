"""Question: which devices exchange what, and how many of them does one domain hold?

Peers with most traffic are neighbours. From the inside out, in JAX tensor, expert, context, fsdp,
data, pipeline; in Megatron-LM tensor, context, data, pipeline, and, in a layout of their own over
the same devices of a stage, expert_tensor, expert and their replicas (Liu et al. 2025, "MoE
Parallel Folding", arXiv 2504.14960, section 3.2). A group of g members, s devices apart, has

    inside = clip(domain / s, 1, g)

members per domain.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from moeprof.projector.setting import Count, Degrees
from moeprof.projector.timing.links import Group


class Groups(NamedTuple):
    """The groups of a plan.

    ``expert_weights`` share, or replicate, a rank's experts, ``other_weights`` all else;
    ``replicas`` hold the same weights in JAX; ``stages`` are two neighbours in the pipeline.
    """

    tensor: Group
    context: Group
    exchange: Group
    expert_weights: Group
    other_weights: Group
    replicas: Group
    stages: Group


def groups_of(world: str, degrees: Degrees, domain: int) -> Groups:
    """The groups of one plan, or of many."""
    if world == "megatron":
        return _megatron(degrees, domain)
    d = degrees
    spread = d.context * d.fsdp
    stage = d.tensor * d.expert * spread * d.data
    return Groups(
        tensor=_group(1, d.tensor, domain),
        context=_group(d.tensor * d.expert, d.context, domain),
        exchange=_group(d.tensor, d.expert, domain),
        expert_weights=_group(d.tensor * d.expert, spread, domain),
        other_weights=_group(d.tensor, d.expert * spread, domain),
        replicas=_group(d.tensor * d.expert * spread, d.data, domain),
        stages=_group(stage, 2, domain),
    )


def _megatron(d: Degrees, domain: int) -> Groups:
    replicas = d.context * d.fsdp * d.data
    stage = d.tensor * replicas
    experts = d.expert_tensor * d.expert
    return Groups(
        tensor=_group(1, d.tensor, domain),
        context=_group(d.tensor, d.context, domain),
        exchange=_group(d.expert_tensor, d.expert, domain),
        expert_weights=_group(experts, stage // experts, domain),
        other_weights=_group(d.tensor, replicas, domain),
        replicas=_group(d.tensor, 1, domain),
        stages=_group(stage, 2, domain),
    )


def _group(apart: Count, size: Count, domain: int) -> Group:
    return Group(size, np.clip(domain // np.asarray(apart), 1, np.maximum(size, 1)))
