"""Traces as PyTorch's profiler writes them: each event with the fields that occur in real files."""

import json

HOST, GPU, STREAM = 100, 0, 7


class Kineto:
    """A trace under way. Stamps and lengths are in µs, ``at`` from the start of the trace."""

    def __init__(self, rank=None, ranks=1):
        """Begin; ``rank`` is written as torch.distributed's."""
        self.events = []
        self.head = {"schemaVersion": 1, "record_shapes": 1, "displayTimeUnit": "ms"}
        self.head["deviceProperties"] = [{"id": GPU, "name": "NVIDIA H200"}]
        if rank is not None:
            self.head["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": ranks}
        self._ids = 0

    def _event(self, category, name, at, length, process=HOST, thread=HOST, **args):
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread}
            | {"ts": 5_000_000 + at, "dur": length, "args": args}
        )

    def step(self, number, at, length):
        """``profiler.step()``."""
        self._event("user_annotation", f"ProfilerStep#{number}", at, length, **{"External id": 1})

    def annotation(self, name, at, length, thread=HOST):
        """``record_function``."""
        self._event("user_annotation", name, at, length, thread=thread)

    def function(self, name, at, length, thread=HOST):
        """A call of Python's, or of a module."""
        args = {"Python parent id": None, "Python id": 1}
        self._event("python_function", name, at, length, thread=thread, **args)

    def op(self, name, at, length, *, thread=HOST, sequence=None, forward=0, inputs=(), more=()):
        """An op of the dispatcher; ``inputs`` are (dims, type). Returns its id."""
        self._ids += 1
        args = {"External id": self._ids + 100, "Record function id": 0}
        if sequence is not None:
            args |= {"Sequence number": sequence, "Fwd thread id": forward}
        if inputs:
            args |= {"Input Dims": [dims for dims, _ in inputs]}
            args |= {"Input type": [kind for _, kind in inputs]}
            args |= {"Concrete Inputs": ["" for _ in inputs]}
        args |= dict(more)
        self._event("cpu_op", name, at, length, thread=thread, **args)
        return self._ids + 100

    def kernel(
        self, name, at, length, *, launch, op=None, thread=HOST, call="cudaLaunchKernel", **more
    ):
        """A kernel, launched by a call at ``launch``, with the id of an op where one is known."""
        self._ids += 1
        args = {"correlation": self._ids} | ({"External id": op} if op else {})
        self._event("cuda_runtime", call, launch, 1, thread=thread, cbid=211, **args)
        gpu = more.pop("gpu", GPU)
        more |= {"device": gpu, "stream": STREAM, "context": 1, "grid": [1, 1, 1]}
        self._event("kernel", name, at, length, gpu, STREAM, **args, **more)

    def collective(self, name, at, elements, *, group, ranks, late=0, length=5):
        """A collective of NCCL, as torch.distributed notes it down."""
        message = {"Collective name": name, "Process Group Name": group, "dtype": "BFloat16"}
        message |= {"In msg nelems": elements, "Out msg nelems": elements}
        message |= {"Group size": len(ranks), "Process Group Ranks": str(ranks)}
        op = self.op("record_param_comms", at, 20, more=message)
        kernel = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
        self.kernel(kernel, at + 10 + late, length, launch=at + 5, op=op)

    def write(self, path):
        """The file."""
        path.write_text(json.dumps({**self.head, "traceEvents": self.events}))
        return path
