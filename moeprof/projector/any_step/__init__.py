"""What any jitted function takes of each of N devices that are not there: `ask.plan`.

The function is lowered in the process that asks, with all that it closes over, and compiled in
another one (`moeprof.projector.compiled`), which sees the lowered program alone.
"""

PROGRAMS = 8
"""After so many programs a script is run no further, once it loops."""
SECONDS = 60.0
"""Nor after so long."""
