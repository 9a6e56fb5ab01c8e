"""Question: who turns what is observed into windows? One `Watcher` in the profiled process."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, ParamSpec, TypeVar

from moeprof.recording import jax_private, jit_proxy, observe, routing
from moeprof.recording.choices.auto import AutoRouting
from moeprof.recording.device_facts import describe_process, drain, mesh_axes, program_sizes
from moeprof.recording.host_facts import GarbagePauses
from moeprof.recording.options import CaptureOptions
from moeprof.recording.process_record import ProcessRecord, failure_text, versions, why_nothing
from moeprof.recording.progress import Listener
from moeprof.recording.signals import Termination
from moeprof.recording.steps import (
    GIVE_UP_STEPS,
    NEXT_STEP_FACT,
    Action,
    NextStep,
    Phase,
    StepCounter,
    StepTimes,
    WindowPlan,
)
from moeprof.recording.together import Together
from moeprof.recording.window import Recorder

P = ParamSpec("P")
T = TypeVar("T")


class Watcher:
    """Follows the script and records. Whatever goes wrong here becomes a note, never an error."""

    def __init__(self, options: CaptureOptions, channel: Listener) -> None:
        """Watch as `options` ask and report to `channel`."""
        self.options = options
        self.channel = channel
        self.compilations = 0
        self.is_watching = False
        limits = options.most_steps, options.every_steps, options.enough_steps
        self.together = Together(wait=drain)
        self.counter = StepCounter(WindowPlan(options.skip_steps, *limits), self.together.may_open)
        self._compiled: Counter[str] = Counter()  # by function: in calls that compile unseen
        self.record = ProcessRecord(options.run_dir)
        self.routing = AutoRouting(options, self.counter, channel, jit_proxy.stand_in_for_good)
        self.in_place_of = self.routing.in_place_of
        self.pauses = GarbagePauses()
        self.times = StepTimes()
        self.recorder: Recorder | None = None
        self._hooks = observe.Hooks()
        self._next_step = NextStep()
        self._lock = threading.Lock()
        self._here = threading.local()  # whether this thread is inside a boundary
        self._start = time.monotonic()
        self._interrupted: KeyboardInterrupt | None = None
        self._listeners = contextlib.ExitStack()
        self._termination = Termination(self._on_terminate)
        self._closing = threading.Lock()

    def install(self) -> None:
        """Put the observers in; JAX has just been imported."""
        self.channel.send("imported", {"versions": versions()})
        safely = self._safely
        listen = self._listeners.callback
        listen(observe.watch_compilations(safely(self._on_compile_phase, None)))
        observe.watch_calls(self._hooks)
        observe.watch_annotations(
            self._hooks, safely(self._on_annotation, False), safely(self._on_annotation_end, None)
        )
        observe.watch_script_profiles(
            self._hooks, safely(self._on_script_profile, None), safely(self._on_server, None)
        )
        observe.watch_joining(self._hooks, safely(self._join_job, None))
        if self.options.in_process:
            listen(jax_private.watch_fast_calls(safely(self._on_fast_call, None)))
        jit_proxy.set_observer(jit_proxy.SafeObserver(self, safely))
        observe.leave_forked_processes(self)
        self.pauses.install()
        self.is_watching = True
        safely(self._join_job, None)()

    def remove(self) -> None:
        """Take everything out again; calls pass straight through from now on."""
        self.is_watching = False
        jit_proxy.set_observer(None)
        self._hooks.remove()
        self._listeners.close()
        self.pauses.remove()

    def _safely(self, hook: Callable[P, T], otherwise: T) -> Callable[P, T]:
        """`hook`, which gives `otherwise` and ends the capture where it raises."""

        def safe(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return hook(*args, **kwargs)
            except Exception as error:
                self._abandon(error)
                return otherwise

        return safe

    def _join_job(self) -> None:
        """Share folder and window with the other processes, once `jax.distributed` joined them."""
        if self.together.job is None and (job := jax_private.distributed_job()) is not None:
            self.options, why = self.together.join(job, self.options)
            self.record.joined(job, self.together.capture, self.options.run_dir, self.channel)
            if why:
                self._note(why)

    def is_tracing(self) -> bool:
        """Whether a call on this thread would run nothing."""
        return jax_private.is_tracing()

    def before_call(self, key: Hashable, name: str) -> None:
        """A jitted function is about to be called from Python."""
        self._step_begins(key, name)

    def _on_fast_call(self, function: Any) -> None:
        """A function that was jitted before anyone watched has been called from Python."""
        key = jit_proxy.function_key(function)
        if jit_proxy.is_inside_call() or not hasattr(function, "__wrapped__"):
            return  # counted as it began, or a part of JAX's own evaluation
        if key[0].partition(".")[0] == "jax":
            return  # an operation that JAX jits, as those of jax.numpy
        missed = self._compiled.pop(key[1].rpartition(".")[2], 0)
        begin = functools.partial(self._step_begins, key, key[1], follows_call=True, missed=missed)
        if self.counter.phase is Phase.RECORDING:
            jax_private.after_this_call(self._safely(begin, False))
        else:
            begin()

    def spent_compiling(self, key: Hashable, name: str, seconds: float) -> None:
        """The program of `key` took so long to compile."""
        self.counter.spent_compiling(key, name, seconds)

    def call_failed(self, error: BaseException) -> None:
        """A call raised; its text may be an out-of-memory message that the script swallows."""
        self.record.keep_if_out_of_memory(error)

    def _on_annotation(self, name: str, number: int | None) -> bool:
        """Whether a recording was started for the annotation about to be entered."""
        if self.is_tracing():
            return False
        return self._step_begins(("annotation", name), name, is_annotation=True, number=number)

    def _step_begins(self, key: Hashable, name: str, **facts: Any) -> bool:
        """Count a step; whether a recording was started for it."""
        now_ns = time.time_ns()
        self._join_job()
        if self.options.in_process and self.counter.lacks_sizes:
            self.counter.sized(program_sizes())
        self.times.begins(key, self.compilations)

        def count() -> Action:
            action = self.counter.begin(key, name, **facts)
            self._see_next_step(key, now_ns, closes=action is Action.CLOSE)
            return action

        action = self._at_boundary(count)
        self.times.begun(key, action)
        if self.counter.phase is Phase.DONE and self.times.is_over:
            self.remove()
        return action is Action.OPEN

    def _see_next_step(self, key: Hashable, now_ns: int, *, closes: bool) -> None:
        """Write down when the step after a window begins, be the window still open or not."""
        if closes and self.recorder is not None and self.recorder.current is not None:
            self.recorder.current.facts[NEXT_STEP_FACT] = now_ns
        elif self._next_step.begins(key, now_ns):
            self._save()

    def _on_annotation_end(self, name: str) -> None:
        if not self.is_tracing():
            self._at_boundary(lambda: self.counter.end(("annotation", name)))

    def _at_boundary(self, count: Callable[[], Action]) -> Action:
        """Count a step's beginning or end and do what follows; no error reaches the script."""
        self._termination.hold()  # no step of a script that would be dead without us
        # Another thread in here means an export or a start is going on: not a step to count.
        if not self._lock.acquire(blocking=False):
            return Action.NOTHING
        self._here.is_inside = True
        try:
            if self.counter.phase is Phase.RECORDING and self.recorder is not None:
                self.counter.record_at_most(self.recorder.most_steps(self.counter.steps_recorded))
            action = count()
            self._act(action)
            return action
        except Exception as error:
            self._abandon(error)
            return Action.NOTHING
        finally:
            self._here.is_inside = False
            self._lock.release()

    def _abandon(self, error: Exception) -> None:
        with contextlib.suppress(Exception):  # the script's own thread may be in here
            self._note(f"capture gave up: {type(error).__name__}: {error}")
            self._stop()
            self.remove()

    def _stop(self) -> None:
        """Open no window any more, for which no other process has to wait then."""
        self.counter.stop()
        self.together.withdraw()

    def _on_compile_phase(self, event: str, seconds: float, function: str) -> None:
        self.record.compiled(event.removeprefix(observe.COMPILE_EVENTS_PREFIX), seconds, function)
        if event == observe.COMPILE_EVENT:
            self.compilations += 1
            self._compiled[function.removeprefix("jit(").removesuffix(")")] += 1
            self.counter.compiled()
            self.channel.send("compiled", {"programs": self.compilations})

    def _on_server(self, port: int) -> None:
        self._note(
            f"the script runs a profiler server on port {port}: "
            "a remote capture will be refused while moeprof records"
        )

    def _on_script_profile(self, folder: str | None) -> None:
        if getattr(self._here, "is_inside", False):
            return  # our own, where it has to go through jax.profiler.start_trace
        with self._lock:
            try:
                self._step_aside(folder)
            except Exception as error:
                self._abandon(error)

    def _step_aside(self, folder: str | None) -> None:
        if self.counter.phase is Phase.DONE and not self.record.own_profiles:
            return
        if folder is not None:
            self.record.own_profiles.append(folder)
            self.record.mesh = mesh_axes(self.record.mesh)
        self._close("the script started a profile of its own", wait_for_devices=True)
        if self.counter.phase is not Phase.DONE:
            self._note("the script profiles itself: moeprof steps aside and keeps that profile")
            self.channel.send("stopped")
        self._stop()
        jit_proxy.set_observer(None)

    def _act(self, action: Action) -> None:
        if action is Action.OPEN:
            self._open()
        elif action is Action.CLOSE:
            began_ns, window = time.time_ns(), self.recorder and self.recorder.current
            self._close("complete", wait_for_devices=True)
            self._keep_routing()
            self._save()
            if window and NEXT_STEP_FACT not in window.facts:
                held_up_ns = time.time_ns() - began_ns
                self._next_step.expect(window.facts, self.counter.source, held_up_ns)
        elif self.counter.phase is Phase.RECORDING and self.recorder is not None:
            self.recorder.sample()

    def _open(self) -> None:
        self.record.process = describe_process()
        index = self.record.process["process_index"]
        if self.options.hosts is not None and index not in self.options.hosts:
            self.record.process["records"] = False
            option = "hosts" if self.options.in_process else "--hosts"
            return self._give_up(f"process {index} does not record ({option})")
        if jax_private.script_session_is_active():
            return self._give_up("another profile is active in this process: nothing recorded")
        if self.recorder is None:
            self.recorder = Recorder(self.options, self.channel, index)
            self.record.introduce(self.channel)
        facts = {
            "counted_by": self.counter.tracks[self.counter.source].counted_by,
            "settled": self.counter.settled,
            "settle_s": time.monotonic() - self._start,
            "programs_compiled": self.compilations,
            "first_step": self.counter.first_step,
            "step_times": self.times.opened(self.counter.source),
            **self.together.facts(),
        }
        if self.together.apart:
            self._note(f"the window is not that of the other processes: {self.together.apart}")
        try:
            self.recorder.open(facts)
        except Exception as error:  # the profiler must not harm the script
            return self._give_up(f"the profiler did not start: {error}")
        watch = self.together.watch
        self.recorder.vigil = watch(self.options.run_dir, self.times.running_ns, self._on_lost)
        if not self.options.in_process:
            self._termination.watch()
        if self.recorder.budget is not None:
            fit = self.recorder.budget.steps
            self.counter.record_at_most(self.together.agreed(fit, self.counter.first_step))
        steps = {"steps": self.counter.wanted, "give_up_steps": GIVE_UP_STEPS}
        most = {"most_steps": self.options.most_steps}  # fewer fit into the time
        self.channel.send("recording", {**facts, **steps, **most})

    def _close(self, reason: str, *, wait_for_devices: bool) -> None:
        with self._closing:  # SIGTERM closes on a thread of its own
            if self.recorder is not None and self.recorder.current is not None:
                self._close_window(self.recorder, reason, wait_for_devices=wait_for_devices)

    def _close_window(self, recorder: Recorder, reason: str, *, wait_for_devices: bool) -> None:
        facts = {
            "last_step": self.counter.last_step,
            "steps": self.counter.steps_recorded,
            "closed_because": reason,
        }
        try:
            recorder.close(facts, wait_for_devices=wait_for_devices)
        except Exception as error:
            self._note(f"closing the window failed: {type(error).__name__}: {error}")
        finally:
            self.channel.send("closed")
            self.times.closed()
            self._save()
            self._termination.undo()  # last: until here a SIGTERM must not lose the recording

    def _give_up(self, text: str) -> None:
        self._note(text)
        self._stop()
        self._save()
        self.remove()

    def _note(self, text: str) -> None:
        self.record.problems.append(text)
        self.channel.send("note", {"text": text})

    def _on_terminate(self) -> None:
        self._cut("the script was terminated", "terminated")

    def _on_lost(self, why: str) -> None:
        self._cut(why, why)
        self._stop()

    def _cut(self, what: str, reason: str) -> None:
        with self._lock:  # a step boundary is done with first, and an export in it
            if self.recorder is not None and self.recorder.current is not None:
                self._note(f"{what} inside the window: kept what was recorded")
            self._close(reason, wait_for_devices=False)

    def _keep_routing(self) -> None:
        """Write the window's routing now: a long run would push it out of the bounded record."""
        try:
            routing.flush()
        except Exception as error:
            self._note(f"routing was not saved: {type(error).__name__}: {error}")

    def _save(self) -> None:
        self.record.save(self.recorder, self.pauses.pauses, self.channel)

    def finish(self, error: BaseException | None = None) -> None:
        """The script has ended, by `error` or well: save what there is, say why there is no more.

        Raises:
            KeyboardInterrupt: in process, after all, where Ctrl-C came meanwhile.
        """
        self._termination.hold()
        try:
            for part in (
                lambda: self._end_window(error),
                self.routing.finish,
                self._save,  # before adopting, which may fail or be interrupted
                lambda: self.record.adopt_profiles(self._note),
                self._save,
                lambda: self.recorder.wait_for_exports(self._save) if self.recorder else None,
            ):
                self._attempt(part)
        finally:
            self.remove()
        if self._interrupted is not None and self.options.in_process and error is None:
            raise self._interrupted

    def _attempt(self, part: Callable[[], None]) -> None:
        """Do one part of the end; whatever goes wrong in it, the next one follows."""
        try:
            part()
        except KeyboardInterrupt as interrupt:
            self._interrupted = interrupt
            self._note("interrupted while saving")
        except Exception as error:
            self._note(f"saving failed: {type(error).__name__}: {error}")

    def _end_window(self, error: BaseException | None) -> None:
        how = failure_text(error, "the block" if self.options.in_process else "the script")
        if error is not None:
            self.record.keep_if_out_of_memory(error)
        if self.record.process is None and jax_private.backends_are_initialized():
            self.record.process = describe_process()
        if self.recorder is not None and self.recorder.current is not None:
            is_complete = self.counter.end_of_script(cleanly=error is None)
            if not is_complete:
                self._note(f"{how} inside the window: kept what was recorded")
            self._close("complete" if is_complete else how, wait_for_devices=error is None)
        elif self.recorder is None and self.counter.phase is Phase.WAITING:
            self._give_up(why_nothing(how, self.counter, self.options, error))
