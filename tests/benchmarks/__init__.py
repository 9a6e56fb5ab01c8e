"""Measuring programs, as far as they can be checked without what they measure."""
