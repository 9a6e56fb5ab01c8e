"""Question: what is in the process that workers of this machine are copies of?

All that reading a host needs, imported once. What the collector of garbage never looks at stays in
memory that copies share: of four workers, each has some 15 MB less of its own. Only that process
imports this module.
"""

import gc

import moeprof.session.by_host  # noqa: F401

gc.collect()
gc.freeze()
