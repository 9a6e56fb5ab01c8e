"""Figures of questions that are too large to stand beside the answer: document to plotly dicts."""
