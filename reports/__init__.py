"""Findings as text, JSON and one self-contained HTML page."""
