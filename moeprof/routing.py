"""Record routing from a training script: ``moeprof.routing.record(step, tokens_per_expert)``."""

from moeprof.recording.routing import KEPT_STEPS, flush, record

__all__ = ["KEPT_STEPS", "flush", "record"]
