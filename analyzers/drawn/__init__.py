"""Questions whose answers are pictures: tables with a row per slice, point or cell.

One per file, each named in `moeprof.analyzers.DRAWN`. A document holds them column by column.
"""
