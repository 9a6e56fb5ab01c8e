"""Which part of the training step each HLO instruction belongs to, and in which phase it runs."""

from moeprof.analyzers.classify.classifier import CLASSES, classify

__all__ = ["CLASSES", "classify"]
