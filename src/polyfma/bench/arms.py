"""The arms of an operator: the floor of its traffic, what torch and Liger have, and polyfma's programs and exact kernels."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from polyfma import catalog, ops
from polyfma.bench.timing import Call
from polyfma.ops import execute
from polyfma.ops.choice import EXACT, Choice, choose, parse
from polyfma.ops.dtypes import FORMATS
from polyfma.ops.launch import compile_asm, launch, load
from polyfma.ops.operation import TILING

FUNCTIONS = ("sigmoid", "tanh", "silu", "gelu")
_aten: Any = torch.ops.aten
# Every arm of a unary operator reads the same tensors and writes the same one: where a buffer lies in the L2 cache changes its speed by some percent.
FORWARD: dict[str, Callable[[Tensor, Tensor], object]] = {
    "sigmoid": lambda x, out: _aten.sigmoid.out(x, out=out),
    "tanh": lambda x, out: _aten.tanh.out(x, out=out),
    "silu": lambda x, out: _aten.silu.out(x, out=out),
    "gelu": lambda x, out: _aten.gelu.out(x, out=out),
}
# sigmoid and tanh take the saved output in place of the input
BACKWARD: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {
    "sigmoid": lambda grad, y, out: _aten.sigmoid_backward.grad_input(grad, y, grad_input=out),
    "tanh": lambda grad, y, out: _aten.tanh_backward.grad_input(grad, y, grad_input=out),
    "silu": lambda grad, x, out: _aten.silu_backward.grad_input(grad, x, grad_input=out),
    "gelu": lambda grad, x, out: _aten.gelu_backward.grad_input(grad, x, grad_input=out),
}
COMPILED: dict[tuple[str, str], Callable[..., object]] = {
    ("sigmoid", "forward"): lambda x, out: out.copy_(torch.sigmoid(x)),
    ("tanh", "forward"): lambda x, out: out.copy_(torch.tanh(x)),
    ("silu", "forward"): lambda x, out: out.copy_(F.silu(x)),
    ("gelu", "forward"): lambda x, out: out.copy_(F.gelu(x)),
    ("sigmoid", "backward"): lambda grad, y, out: out.copy_(_aten.sigmoid_backward(grad, y)),
    ("tanh", "backward"): lambda grad, y, out: out.copy_(_aten.tanh_backward(grad, y)),
    ("silu", "backward"): lambda grad, x, out: out.copy_(_aten.silu_backward(grad, x)),
    ("gelu", "backward"): lambda grad, x, out: out.copy_(_aten.gelu_backward(grad, x)),
}
_SAVES_OUTPUT = ("sigmoid", "tanh")


@cache
def _floor_kernel(inputs: int, outputs: int, fmt: str, device: int) -> Any:
    """Reads ``inputs`` tensors, writes ``outputs``, with as little arithmetic as makes every load needed."""
    first = f"${outputs}"
    lines = [f"mov.b32 v, {first};", *(f"or.b32 v, v, ${outputs + i};" for i in range(1, inputs)), *(f"mov.b32 ${i}, v;" for i in range(outputs))]
    constraints = ",".join(["=r"] * outputs + ["r"] * inputs)
    major, minor = torch.cuda.get_device_capability(device)
    return load(compile_asm("{ .reg .b32 v; " + " ".join(lines) + " }", constraints, [fmt] * inputs, [fmt] * outputs, 10 * major + minor, TILING), device)


def floor(inputs: list[Tensor], outputs: list[Tensor]) -> Call:
    """Our kernel with the same loads and stores and next to no arithmetic."""
    first = outputs[0]
    loaded = _floor_kernel(len(inputs), len(outputs), FORMATS[first.dtype], first.get_device())
    arguments = [*(t.data_ptr() for t in (*inputs, *outputs)), first.numel()]
    blocks = -(-first.numel() // TILING[0])
    kept = (inputs, outputs)  # their addresses are in use as long as the call

    def call() -> object:
        launch(loaded, blocks, torch.cuda.current_stream().cuda_stream, arguments)
        return kept

    return call


def polyfma_key(function: str, fmt: str, program: str | None, direction: str) -> str | None:
    """The key of a choice; None where the catalogue has no such program for the direction."""
    if direction == "backward" and program not in (None, EXACT):
        name = f"{function}.backward.{fmt}.{program}"
        return choose(function, fmt, backward=name).key if name in catalog.programs() else None
    if program == "hardware" and f"{function}.forward.{fmt}.hardware" not in catalog.programs():
        return None
    if program and re.fullmatch(r"d\d+", program):
        program = f"{function}.forward.{fmt}.{program}"
    return choose(function, fmt, program).key


def program_name(key: str, direction: str) -> str:
    choice: Choice = parse(key)
    return choice.forward if direction == "forward" else choice.backward


def unary_arms(function: str, direction: str, x: Tensor, grad: Tensor, programs: dict[str, str | None]) -> tuple[dict[str, Call], dict[str, str]]:
    """Arms of a function on contiguous tensors of one shape, and the program of each polyfma arm.

    ``programs`` maps an arm's name to what ``program=`` takes (None: the default; ``dN``).
    """
    out = torch.empty_like(x)
    forward = direction == "forward"
    saved = x
    if not forward and function in _SAVES_OUTPUT:
        saved = torch.empty_like(x)
        FORWARD[function](x, saved)
    given = [x, out] if forward else [grad, saved, out]
    native: Any = FORWARD[function] if forward else BACKWARD[function]
    arms: dict[str, Call] = {"copy kernel": floor([x] if forward else [grad, x], [out])}
    if forward:
        arms["cuda memcpy"] = partial(out.copy_, x)
    arms |= {"torch": partial(native, *given), "torch.compile": partial(torch.compile(COMPILED[function, direction], dynamic=False), *given)}
    names: dict[str, str] = {}
    for arm, program in programs.items():
        key = polyfma_key(function, FORMATS[x.dtype], program, direction)
        if key is not None:
            names[arm] = program_name(key, direction)
            arms[arm] = partial(execute.run, key, "unary", (x,), (out,)) if forward else partial(execute.run, key, "unary_backward", (grad, x), (out,))
    return arms, names


def swiglu_arms(direction: str, gate: Tensor, up: Tensor, grad: Tensor, programs: dict[str, str | None]) -> tuple[dict[str, Call], dict[str, str]]:
    """Arms of silu(gate) * up: torch eager, torch.compile, Liger where it is installed, polyfma."""
    outputs = [torch.empty_like(gate) for _ in range(1 if direction == "forward" else 2)]
    inputs = [gate, up] if direction == "forward" else [grad, gate, up]

    native: Any = _silu_times if direction == "forward" else partial(_silu_times_backward, value=F.silu(gate))
    into: Any = _silu_times_into if direction == "forward" else _silu_times_backward_into
    arms: dict[str, Call] = {"copy kernel": floor(inputs, outputs), "torch": partial(native, *inputs)}
    arms |= {arm: partial(call, *inputs, *outputs) for arm, call in _compiled(into).items()}
    arms |= _liger_arm(direction, gate, up, grad)
    names: dict[str, str] = {}
    for arm, program in programs.items():
        key = polyfma_key("silu", FORMATS[gate.dtype], program, "forward")
        if key is not None:
            names[arm] = program_name(key, direction)
            arms[arm] = partial(execute.run, key, "gated" if direction == "forward" else "gated_backward", inputs, outputs)
    return arms, names


def _compiled(function: FunctionType) -> dict[str, Callable[..., object]]:
    """torch.compile of the function three times over, as if in three processes.

    Its autotuner picks a launch configuration from a few noisy timings, and what it picks changes the speed of such a kernel by a
    tenth and more: one compilation would be one draw.
    """
    draws: dict[str, Callable[..., object]] = {}
    for number in range(3):  # another code object is another function to the compiler
        copy = FunctionType(function.__code__.replace(co_name=f"{function.__name__}_{number}"), function.__globals__)
        draws["torch.compile" + (f", compiled again ({number})" if number else "")] = torch.compile(copy, dynamic=False)
    return draws


def swiglu_autograd_arms(gate: Tensor, up: Tensor, grad: Tensor) -> dict[str, Call]:
    """The backward pass as a model runs it: autograd calls it, for a forward pass made once."""
    from torch._functorch import config

    forwards: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"torch": _silu_times, "torch.compile": torch.compile(_silu_times, dynamic=False),
                                                               "polynomial": ops.swiglu, "exact": partial(ops.swiglu, program=EXACT)}  # fmt: skip
    try:
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction

        forwards["liger"] = LigerSiLUMulFunction.apply
    except ImportError:
        pass
    arms: dict[str, Call] = {}
    with config.patch(donated_buffer=False):  # the pass is repeated, so the compiled one must not consume what was saved
        for arm, forward in forwards.items():
            leaves = [t.clone().requires_grad_() for t in (gate, up)]
            arms[arm] = partial(torch.autograd.grad, forward(*leaves), leaves, grad, retain_graph=True)
            arms[arm]()
    return arms


def _silu_times(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def _silu_times_backward(grad: Tensor, gate: Tensor, up: Tensor, value: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Both gradients; eager torch has the value of silu saved, a compiled kernel computes it again."""
    return _aten.silu_backward(grad * up, gate), grad * (F.silu(gate) if value is None else value)


def _silu_times_into(gate: Tensor, up: Tensor, out: Tensor) -> None:
    out.copy_(_silu_times(gate, up))


def _silu_times_backward_into(grad: Tensor, gate: Tensor, up: Tensor, d_gate: Tensor, d_up: Tensor) -> None:
    first, second = _silu_times_backward(grad, gate, up)
    d_gate.copy_(first)
    d_up.copy_(second)


def _liger_arm(direction: str, gate: Tensor, up: Tensor, grad: Tensor) -> dict[str, Call]:
    """Liger's kernel. Its backward overwrites what was saved, so it gets copies that need not be right any more."""
    try:
        from liger_kernel.ops.swiglu import swiglu_backward, swiglu_forward
    except ImportError:
        return {}
    if direction == "forward":
        return {"liger": partial(swiglu_forward, gate, up)}
    return {"liger": partial(swiglu_backward, gate.clone(), up.clone(), grad)}
