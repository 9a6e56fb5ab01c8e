"""The errors that a user can cause and moeprof explains in one line.

MoeprofError
├── SpecError     a model, plan, strategy or option that cannot be
│   └── PlanError   a plan that does not fit the model, the devices or the batch
├── TraceError    a profile that cannot be read
│   └── NoProfileError  a folder that holds none
├── SelectionError  a session, host or question asked for by a name that there is none of
├── NotByHostError  what needs all work of all hosts at once, of a run read host by host
├── TableError    a table that lacks what its schema promises
├── ReplayError   an op that cannot be run again as it was
├── CaptureError  a capture that cannot start
├── ViewError     pages that cannot be served
├── CompileError  a step that cannot be compiled, or no compiler
└── NativeError   the native library is absent or refuses to load

Messages say, in this order: what was read or built, what was expected, what was found, what to do.
The command line turns these alone into one line and exit code 1 (2, wrong usage, for a
SelectionError or a PlanError); anything else keeps its traceback.
"""


class MoeprofError(Exception):
    """A fault whose message is all the user needs."""


def one_line(said: object) -> str:
    """What an error of others says, in one line; empty where it says nothing."""
    return " ".join(str(said).split())


class SpecError(MoeprofError):
    """A model, plan, strategy or option that cannot be."""


class PlanError(SpecError):
    """A plan that does not fit; the message has every complaint, both numbers and the choices."""


class TraceError(MoeprofError):
    """A profile that cannot be read."""


class NoProfileError(TraceError):
    """A folder without a profile; the message says what else it knows of the run."""


class SelectionError(MoeprofError):
    """A session, host or question that there is none of; the message lists those there are."""


class NotByHostError(MoeprofError):
    """What needs all work of all hosts at once, of a run that was read host by host."""


class TableError(MoeprofError):
    """A table that lacks what its schema promises."""


class ReplayError(MoeprofError):
    """An op that cannot be run again as it was; the message names what has no translation."""


class CaptureError(MoeprofError):
    """A capture that cannot start."""


class ViewError(MoeprofError):
    """Pages that cannot be served."""


class CompileError(MoeprofError):
    """A step that cannot be compiled, or no compiler for its devices; the message says why."""


class NativeError(MoeprofError):
    """The native library is absent or refuses to load."""
