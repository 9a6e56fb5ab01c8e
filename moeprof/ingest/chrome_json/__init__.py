"""Traces in the JSON of Chrome's viewer, as JAX and PyTorch write them."""

from moeprof.ingest.chrome_json.read import JSON_SUFFIXES, read_json_trace

__all__ = ["JSON_SUFFIXES", "read_json_trace"]
