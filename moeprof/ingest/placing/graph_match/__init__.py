"""Which HLO op the kernels belong to that a GPU graph (command buffer) hides."""

from moeprof.ingest.placing.graph_match.match import match_graphs

__all__ = ["match_graphs"]
