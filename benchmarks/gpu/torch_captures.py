"""Question: what do PyTorch's profiles of a small MoE training look like? Traces of each kind.

    python benchmarks/gpu/torch_captures.py OUT [--device cuda|cpu] [--only NAME …]

Needs PyTorch alone. A dropless MoE transformer (attention by SDPA, a sigmoid router, experts by one
grouped product or a loop, a shared expert, checkpointing) is trained by AdamW, with two steps under
``torch.profiler``, once per kind of trace:

    full          shapes, stacks, modules
    shapes        shapes, no stacks
    bare          neither
    annotated     neither, with record_function around the parts of the layer
    asynchronous  full, and no step waits for the device
    no-steps      full, without ProfilerStep
    inference     shapes, forward alone
    compiled      full, the model compiled by torch.compile (GPUs alone)
    graphs        shapes, the whole step replayed as a CUDA graph (GPUs alone)
    ranks         shapes, two processes by gloo, or one by NCCL on a GPU: FSDP-like gathers and
                  reductions, an all-to-all of tokens

Traces are written as PyTorch writes them, packed with gzip.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.checkpoint import checkpoint

HIDDEN, WIDTH, EXPERTS, TOP_K, HEADS, LAYERS, VOCAB = 256, 512, 8, 2, 4, 2, 1024
BATCH, LENGTH = 2, 128
KINDS = (
    *("full", "shapes", "bare", "annotated", "asynchronous", "no-steps", "inference"),
    *("compiled", "graphs", "ranks"),
)
ANNOTATED = False
GROUP: Any = None


def part(name: str) -> Any:
    """A record_function around a part of the layer, where the trace is to have them."""
    return record_function(name) if ANNOTATED else nullcontext()


class Attention(nn.Module):
    """Causal attention."""

    def __init__(self) -> None:
        """Projections."""
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend."""
        with part("attention"):
            b, s, _ = x.shape
            q, k, v = self.qkv(x).view(b, s, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(mixed.transpose(1, 2).reshape(b, s, HIDDEN))


class Router(nn.Module):
    """Scores of experts, and the chosen ones."""

    def __init__(self) -> None:
        """Gate."""
        super().__init__()
        self.gate = nn.Linear(HIDDEN, EXPERTS, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and experts of each token."""
        with part("router"):
            scores = torch.sigmoid(self.gate(x).float())
            weights, chosen = torch.topk(scores, TOP_K, dim=-1)
            return (weights / weights.sum(-1, keepdim=True)).to(x.dtype), chosen


class GroupedExperts(nn.Module):
    """SwiGLU experts, by one grouped product where there is one."""

    def __init__(self) -> None:
        """Weights."""
        super().__init__()
        self.w13 = nn.Parameter(torch.randn(EXPERTS, HIDDEN, 2 * WIDTH) * 0.02)
        self.w2 = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) * 0.02)

    def forward(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Rows in the order of experts."""
        with part("experts"):
            gate, up = self.product(rows, self.w13, counts).chunk(2, -1)
            return self.product(F.silu(gate) * up, self.w2, counts)

    def product(self, rows: torch.Tensor, w: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Each expert's rows by its matrix."""
        if rows.is_cuda:
            return torch._grouped_mm(rows, w, offs=counts.cumsum(0).to(torch.int32))
        parts = rows.split(counts.tolist())
        return torch.cat([one @ w[e] for e, one in enumerate(parts)])


class MoE(nn.Module):
    """Routed experts and a shared one."""

    def __init__(self) -> None:
        """Parts."""
        super().__init__()
        self.router = Router()
        self.experts = GroupedExperts()
        self.shared_expert = nn.Sequential(
            nn.Linear(HIDDEN, WIDTH, bias=False), nn.SiLU(), nn.Linear(WIDTH, HIDDEN, bias=False)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Route, permute, multiply, bring back."""
        tokens = x.reshape(-1, HIDDEN)
        weights, chosen = self.router(tokens)
        with part("permute"):
            rows, order, counts = self.permute(tokens, chosen)
        rows = self.experts(self.exchange(rows, "dispatch"), counts)
        with part("unpermute"):
            out = self.unpermute(self.exchange(rows, "combine"), order, weights)
        return (out + self.shared_expert(tokens)).view_as(x)

    def permute(
        self, tokens: torch.Tensor, chosen: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens in the order of experts."""
        order = torch.argsort(chosen.reshape(-1), stable=True)
        counts = F.one_hot(chosen.reshape(-1), EXPERTS).sum(0)
        return tokens[order // TOP_K], order, counts

    def unpermute(
        self, rows: torch.Tensor, order: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Weighted sums of tokens."""
        weighted = rows * weights.reshape(-1)[order][:, None]
        out = torch.zeros(weights.shape[0], HIDDEN, dtype=rows.dtype, device=rows.device)
        return out.index_add(0, order // TOP_K, weighted)

    def exchange(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        """An all-to-all of equal shares, where there are several ranks."""
        if GROUP is None:
            return rows
        with part(name):
            return AllToAll.apply(rows)


class AllToAll(torch.autograd.Function):
    """Equal shares to every rank, and their gradients back."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor) -> torch.Tensor:
        """Send."""
        out = torch.empty_like(rows)
        dist.all_to_all_single(out, rows.contiguous(), group=GROUP)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        """Send back."""
        out = torch.empty_like(grad)
        dist.all_to_all_single(out, grad.contiguous(), group=GROUP)
        return out


class TransformerBlock(nn.Module):
    """Attention and experts."""

    def __init__(self) -> None:
        """Parts."""
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.attention, self.moe = Attention(), MoE()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.moe(self.ffn_norm(x))


class Transformer(nn.Module):
    """The model."""

    def __init__(self) -> None:
        """Parts."""
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(TransformerBlock() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN)
        self.output = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.training else layer(x)
        return self.output(self.norm(x))


def trainer(device: str, ranks: int, *, is_compiled: bool = False) -> Callable[[], None]:
    """One step of training."""
    torch.manual_seed(0)
    model = Transformer().to(device, torch.bfloat16 if device == "cuda" else torch.float32)
    is_fused = device == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=is_fused, capturable=is_fused)
    tokens = torch.randint(0, VOCAB, (BATCH, LENGTH + 1), device=device)
    called = torch.compile(model) if is_compiled else model

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        if ranks:
            for weight in (model.output.weight, model.tok_embeddings.weight):
                whole = torch.empty(ranks * weight.numel(), dtype=weight.dtype, device=device)
                dist.all_gather_into_tensor(whole, weight.detach().reshape(-1), group=GROUP)
        logits = called(tokens[:, :-1])
        loss = F.cross_entropy(logits.float().view(-1, VOCAB), tokens[:, 1:].reshape(-1))
        loss.backward()
        if ranks:
            for weight in model.parameters():
                dist.all_reduce(weight.grad, group=GROUP)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def inference(device: str) -> Callable[[], None]:
    """One forward pass."""
    torch.manual_seed(0)
    model = Transformer().to(device, torch.bfloat16 if device == "cuda" else torch.float32).eval()
    tokens = torch.randint(0, VOCAB, (BATCH, LENGTH), device=device)

    def step() -> None:
        with torch.inference_mode():
            model(tokens)

    return step


def replayed(step: Callable[[], None]) -> Callable[[], None]:
    """A step as one CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def capture(kind: str, device: str, out: Path, rank: int = -1, ranks: int = 0) -> None:
    """Write a trace of two steps."""
    global ANNOTATED
    ANNOTATED = kind == "annotated"
    is_compiled = kind == "compiled"
    step = trainer(device, ranks, is_compiled=is_compiled) if kind != "inference" else None
    step = step or inference(device)
    if kind == "graphs":
        step = replayed(step)
    is_full = kind in ("full", "asynchronous", "no-steps", "compiled")
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
    steps = None if kind == "no-steps" else schedule(wait=1, warmup=2, active=2, repeat=1)
    is_waiting = kind != "asynchronous" and device == "cuda"
    name = kind if rank < 0 else f"rank{rank}"
    for _ in range(3 if steps is None else 0):
        step()
    with profile(
        activities=activities,
        schedule=steps,
        record_shapes=kind not in ("bare", "annotated"),
        with_stack=is_full,
        with_modules=is_full,
    ) as profiler:
        for _ in range(2 if steps is None else 5):
            step()
            if is_waiting:
                torch.cuda.synchronize()
            if steps is not None:
                profiler.step()
        if device == "cuda":
            torch.cuda.synchronize()
    profiler.export_chrome_trace(str(out / f"{name}.pt.trace.json.gz"))


def of_rank(rank: int, ranks: int, device: str, out: str, port: int) -> None:
    """One process of several."""
    global GROUP
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=ranks)
    GROUP = dist.group.WORLD
    folder = Path(out) / "ranks"
    folder.mkdir(parents=True, exist_ok=True)
    capture("ranks", device, folder, rank, ranks)
    dist.destroy_process_group()


def main() -> int:
    """Write the traces asked for; how many failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", action="append", choices=KINDS)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for kind in asked.only or KINDS:
        if kind in ("compiled", "graphs") and asked.device == "cpu":
            continue
        ranks = 2 if asked.device == "cpu" else torch.cuda.device_count()
        work: Callable[..., None] = capture
        arguments: tuple[Any, ...] = (kind, asked.device, asked.out)
        if kind == "ranks":
            work, arguments = of_rank, (ranks, asked.device, str(asked.out), 29511)
        context = processes.get_context("spawn")
        places = range(ranks) if kind == "ranks" else range(1)
        # a process each: what one kind leaves with the profiler is not in the next
        started = [
            context.Process(target=work, args=((n, *arguments) if kind == "ranks" else arguments))
            for n in places
        ]
        for process in started:
            process.start()
        for process in started:
            process.join()
        is_whole = all(process.exitcode == 0 for process in started)
        failed += not is_whole
        print(f"{kind:14} {'written' if is_whole else 'FAILED'}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
