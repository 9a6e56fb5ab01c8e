"""Answers that are pictures: tables with a row per slice, point or cell.

One per file, each with its `DRAWING`. A document holds them column by column.
"""
