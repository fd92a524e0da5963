"""``polyfma bench component --case b2,b3`` and ``polyfma bench attention``: softcapped, sigmoid and exp2 attention in FlashAttention-4.

The published shape: 4,096 tokens, 32 query and 8 key/value heads of dim 128, causal, BF16; batch 1 and 4, and 16,384 tokens. At batch 1
the published protocol (table 4) is timed besides device time in CUDA graphs. Each arm carries the relative L2 error of its output, and
of dq, dk and dv, against fp64, over four heads that share keys and values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from polyfma import catalog
from polyfma.attention.fa4 import call
from polyfma.attention.fa4.hooks import Hook
from polyfma.attention.fa4.score_mod import reciprocal_softcap, reciprocal_softcap_bwd
from polyfma.attention.fa4.softcap import Softcap, SoftcapBackward
from polyfma.attention.mix import EXPONENTIAL, HARDWARE, parse
from polyfma.attention.problem import Problem, check
from polyfma.attention.reference import Weights, reference, sigmoid_weights, softcap_weights, softmax_weights
from polyfma.bench.result import Measurement, Timing, check_cases
from polyfma.bench.timing import GRAPH_PROTOCOL, Call, EagerProtocol, eager_rounds, graph_rounds, need_gpu

CAP, HEADS, KV_HEADS, DIM = 50.0, 32, 8, 128
SHAPES = {"batch 1": (1, 4096), "batch 4": (4, 4096), "16k tokens": (1, 16384)}
SCALES = (1.0, 2.0, 4.0, 8.0)
EAGER = EagerProtocol(warmups=25, rounds=5, calls=100)
GRAPH_ROUNDS = 15
GAP, D5, D6, B6 = "tanh.forward.fp16.fp32-unit-gap-d7", "tanh.forward.fp16.unit-odd-d5", "tanh.forward.fp16.unit-odd-d6", "tanh.forward.bf16.unit-odd-d6"
S3, S4 = "sigmoid.forward.bf16.odd-square-relu-d3.normal", "sigmoid.forward.bf16.fused-odd-relu-d4.normal"
SOFTCAP_MIXES = {
    "forward": (HARDWARE, GAP, f"{HARDWARE}+{GAP}", f"{HARDWARE}+{GAP}+{GAP}", f"{HARDWARE}+{HARDWARE}+{GAP}", f"{HARDWARE}+{HARDWARE}+{GAP}+{GAP}",
                f"{HARDWARE}+{HARDWARE}+{HARDWARE}+{GAP}+{GAP}", f"{HARDWARE}+{GAP}+{GAP}+{GAP}", f"{HARDWARE}+{HARDWARE}+{HARDWARE}+{GAP}",
                D6, B6, f"{HARDWARE}+{D5}", f"{HARDWARE}+{D6}"),
    "backward": (HARDWARE, GAP, f"{HARDWARE}+{GAP}", D5, D6, f"{HARDWARE}+{D6}"),
}  # fmt: skip
PUBLISHED = "sigmoid.forward.bf16.coupled-d3.endpoint-ls"
SIGMOID_MIXES = {
    "forward": (EXPONENTIAL, HARDWARE, S3, S4, f"{HARDWARE}+{S3}", f"{HARDWARE}+{S4}", "sigmoid.forward.bf16.d3", PUBLISHED),
    "backward": (EXPONENTIAL, HARDWARE, S3, S4, PUBLISHED),
}
BIASES = {"bias 0": 0.0, "bias -log n": None}
EXP2 = {"D3 fp32": ("exp2.forward.fp16.d3.published", True), "PWL2 fp16": ("exp2.forward.fp16.pwl2.minimax", False),
        "D2 fp32": ("exp2.forward.fp16.d2.minimax", True), "D1 fp16": ("exp2.forward.fp16.d1.least-squares", False)}  # fmt: skip
ALL_SFU = "all SFU"
PROTOCOL = {
    "graph": GRAPH_PROTOCOL.replace("9 rounds", f"{GRAPH_ROUNDS} rounds"),
    "eager": str(EAGER),
    "data": "q, k, v, dout standard normal in BF16; error scales multiply q and k",
    "error": "relative L2 against fp64 over query heads 4 to 7, which share key/value head 1, of the first sequence",
}
CASES = ("b2", "b3", "exp2")


@dataclass(frozen=True)
class Arm:
    """One way to run a function: ``forward(problem)`` gives (out, log-sum-exp), ``backward(problem, out, dout, lse)`` (dq, dk, dv)."""

    forward: Callable[[Problem], tuple[Tensor, Tensor]] | None
    backward: Callable[[Problem, Tensor, Tensor, Tensor], tuple[Tensor, ...]] | None = None
    mix: str | None = None


def measure(cases: Sequence[str] = CASES, shapes: Sequence[str] = tuple(SHAPES), progress: Callable[..., None] = lambda *_: None) -> Measurement:
    """Every arm of the cases at every shape, forward and backward."""
    need_gpu()
    check_cases(cases, CASES)
    measurement = Measurement("attention", PROTOCOL)
    measurement.machine["versions"] |= call.versions_used()
    for done, case in enumerate(cases):
        progress(done, len(cases), case)
        arms, weights = _arms(case)
        _errors(case, arms, weights, measurement)
        if case == "exp2":
            _against_hardware(arms, measurement)
        for shape in shapes:
            _time(case, shape, arms, measurement)
    progress(len(cases), len(cases))
    return measurement


# -- arms ----------------------------------------------------------------------------------------------


def _arms(case: str) -> tuple[dict[str, Arm], dict[str, Weights]]:
    """The arms of a case, and what each computes by a word that its name ends with, or else the first."""
    if case == "b2":
        return _softcap_arms(), {"": softcap_weights(CAP), "no softcap": softmax_weights}
    if case == "b3":
        return _sigmoid_arms(), {"softmax": softmax_weights} | {
            name: sigmoid_weights(-math.log(4096) if bias is None else bias, 1.0) for name, bias in BIASES.items()}  # fmt: skip
    return _exp2_arms(), {"": softmax_weights}


def _plain(**options: Any) -> Arm:
    return Arm(partial(call.plain_forward, **options), partial(call.plain_backward, **options))


def _softcap_arms() -> dict[str, Arm]:
    arms = {
        "no softcap": _plain(),
        "built-in": _plain(softcap=CAP),
        "reciprocal": Arm(partial(call.plain_forward, score_mod=reciprocal_softcap(CAP)),
                          partial(call.plain_backward, score_mod=reciprocal_softcap(CAP), score_mod_bwd=reciprocal_softcap_bwd(CAP))),
        "flex": Arm(_flex_softcap),
    }  # fmt: skip
    scale = 1 / math.sqrt(DIM)
    for text in dict.fromkeys((*SOFTCAP_MIXES["forward"], *SOFTCAP_MIXES["backward"])):
        mix = parse(text, "tanh", (HARDWARE,))
        hooks = call.softcap_call(mix, mix, CAP, scale, "bf16")
        arms[short(text)] = Arm(partial(_forward, hooks) if text in SOFTCAP_MIXES["forward"] else None,
                                partial(_backward, hooks) if text in SOFTCAP_MIXES["backward"] else None, text)  # fmt: skip
    for text in (HARDWARE, f"{HARDWARE}+{GAP}"):
        mix = parse(text, "tanh", (HARDWARE,))
        hooks = call.Hooks(Softcap(mix, CAP, scale, "bf16", running_maximum=True), SoftcapBackward(mix, CAP, scale, "bf16"))
        arms[f"{short(text)}, running maximum"] = Arm(partial(_forward, hooks))
    return arms


def _sigmoid_arms() -> dict[str, Arm]:
    arms = {"softmax": _plain(), "no function": Arm(partial(_forward, call.Hooks(_Nothing("nothing"), _Nothing("nothing"))))}
    for name, bias in BIASES.items():
        scalars = (-math.log(4096) if bias is None else bias, 1.0)
        for text in dict.fromkeys((*SIGMOID_MIXES["forward"], *SIGMOID_MIXES["backward"])):
            mix = parse(text, "sigmoid", (HARDWARE, EXPONENTIAL))
            hooks = call.sigmoid_call(mix, mix, "bf16")
            arms[f"{short(text)}, {name}"] = Arm(partial(_forward, hooks, scalars=scalars),
                                                 partial(_backward, hooks, scalars=scalars) if text in SIGMOID_MIXES["backward"] else None, text)  # fmt: skip
        arms[f"flex, {name}"] = Arm(partial(_flex_sigmoid, bias=scalars[0]))
    return arms


def _exp2_arms() -> dict[str, Arm]:
    arms = {"FlashAttention-4": _plain()}
    for name, (program, fp32) in {ALL_SFU: (HARDWARE, False), **EXP2}.items():
        hooks = call.exp2_call(program if program == HARDWARE else catalog.load(program), fp32)
        arms[name] = Arm(partial(_forward, hooks), partial(_backward, hooks), program)
    return arms


class _Nothing(Hook):
    """What is left of the forward kernel when scores are weights: the floor of sigmoid attention."""

    def softmax(self, scale_log2: Any, rows: int, scale: Any) -> Any:
        from polyfma.attention.fa4.hooks import plain_softmax
        from polyfma.attention.fa4.sigmoid import SigmoidWeights

        self.weight_scale = 1.0
        return plain_softmax(SigmoidWeights, scale, rows, hook=self)

    def weights_of(self, acc: Any) -> None:
        """Nothing."""


def _forward(hooks: call.Hooks, problem: Problem, scalars: tuple[float, ...] = ()) -> tuple[Tensor, Tensor]:
    return call.forward(problem, hooks, scalars)


def _backward(hooks: call.Hooks, problem: Problem, out: Tensor, grad: Tensor, lse: Tensor, scalars: tuple[float, ...] = ()) -> tuple[Tensor, ...]:
    return call.backward(problem, hooks, out, grad, lse, scalars)


def _flex_softcap(problem: Problem) -> tuple[Tensor, Tensor]:
    from polyfma.attention import flex

    return flex.softcap(problem, CAP), problem.q


def _flex_sigmoid(problem: Problem, bias: float) -> tuple[Tensor, Tensor]:
    from polyfma.attention import flex

    return flex.sigmoid(problem, bias, 1.0), problem.q


def short(text: str) -> str:
    """A mix as tables name it: parts without function, direction and repetition."""
    names = [p.removeprefix("tanh.forward.").removeprefix("sigmoid.forward.").removeprefix("fp16.fp32-") for p in text.split("+")]
    counted: list[tuple[str, int]] = []
    for name in names:
        if counted and counted[-1][0] == name:
            counted[-1] = (name, counted[-1][1] + 1)
        else:
            counted.append((name, 1))
    return " + ".join(f"{count} {name}" if count > 1 else name for name, count in counted)


# -- error and time ------------------------------------------------------------------------------------


def _problem(batch: int, tokens: int, scale: float = 1.0) -> Problem:
    q, k, v = (torch.randn(batch, tokens, heads, DIM, device="cuda") for heads in (HEADS, KV_HEADS, KV_HEADS))
    q, k, v = (t.to(torch.bfloat16) for t in (q * scale, k * scale, v))
    return check(q, k, v, causal=True, softmax_scale=None, window=None, cu_seqlens_q=None, cu_seqlens_k=None)


def _errors(case: str, arms: dict[str, Arm], weights: dict[str, Weights], measurement: Measurement) -> None:
    """Relative L2 errors of every arm: outputs at each scale, gradients at the first."""
    for scale in SCALES if case == "b2" else SCALES[:2]:
        problem = _problem(1, 4096, scale)
        dout = torch.randn_like(problem.q)
        exact = {word: _exact(problem, dout, law, scale == 1.0) for word, law in weights.items()}
        for name, arm in arms.items():
            if name == "no function":
                continue
            wanted = next(values for word, values in reversed(exact.items()) if name.endswith(word))
            fact = measurement.facts.setdefault(f"{case} {name}", {})
            if arm.forward:
                out, _lse = arm.forward(problem)
                fact[f"output, scale {scale:g}"] = _relative(out[:1, :, 4:8], wanted[0])
            if scale == 1.0 and arm.backward:
                grads = arm.backward(problem, *_saved(arm, arms, problem, dout))
                for label, got, want in zip(("dq", "dk", "dv"), (grads[0][:1, :, 4:8], grads[1][:1, :, 1:2], grads[2][:1, :, 1:2]), wanted[1:], strict=True):
                    fact[label] = _relative(got, want)


def _against_hardware(arms: dict[str, Arm], measurement: Measurement) -> None:
    """The metric of table 10: the largest of out, dq, dk and dv's relative L2 distances from the same kernel with ex2.approx alone."""
    problem = _problem(1, 4096)
    dout = torch.randn_like(problem.q)

    def results(arm: Arm) -> list[Tensor]:
        assert arm.backward is not None
        saved = _saved(arm, arms, problem, dout)
        return [saved[0], *arm.backward(problem, *saved)]

    wanted = results(arms[ALL_SFU])
    for name, arm in arms.items():
        found = [_relative(got, want.double()) for got, want in zip(results(arm), wanted, strict=True)]
        measurement.facts[f"exp2 {name}"]["distance from all SFU"] = max(found)


def _saved(arm: Arm, arms: dict[str, Arm], problem: Problem, dout: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(out, dout, log-sum-exp) for a backward pass: of the arm's own forward pass, or of the hardware's where it has none."""
    run = arm.forward or arms[HARDWARE].forward
    assert run is not None
    out, lse = run(problem)
    return out, dout, lse


def _exact(problem: Problem, dout: Tensor, weights: Weights, gradients: bool) -> list[Tensor]:
    """fp64 output of heads 4 to 7, and dq, dk, dv of them and of key/value head 1."""
    q, k, v = (t[:1, :, a:b].double().requires_grad_(gradients) for t, a, b in ((problem.q, 4, 8), (problem.k, 1, 2), (problem.v, 1, 2)))
    out = reference(problem.with_tensors(q, k, v), weights)
    return [out.detach(), *(torch.autograd.grad(out, (q, k, v), dout[:1, :, 4:8].double()) if gradients else ())]


def _relative(got: Tensor, wanted: Tensor) -> float:
    return float((got.double() - wanted).norm() / wanted.norm())


def _time(case: str, shape: str, arms: dict[str, Arm], measurement: Measurement) -> None:
    batch, tokens = SHAPES[shape]
    problem = _problem(batch, tokens)
    dout = torch.randn_like(problem.q)
    calls: dict[str, dict[str, Call]] = {"forward": {}, "backward": {}}
    for name, arm in arms.items():
        if name.endswith("bias -log n"):
            continue  # the same kernel with another scalar
        if arm.forward:
            calls["forward"][name] = partial(arm.forward, problem)
        if arm.backward and shape != "16k tokens":
            calls["backward"][name] = partial(arm.backward, problem, *_saved(arm, arms, problem, dout))
    for direction, timed in calls.items():
        with torch.no_grad():
            if timed:
                _add(measurement, case, shape, direction, arms, "graph", graph_rounds(timed, GRAPH_ROUNDS))
            if timed and shape == "batch 1":
                _add(measurement, case, shape, direction, arms, "eager", eager_rounds(timed, EAGER))


def _add(measurement: Measurement, case: str, shape: str, direction: str, arms: dict[str, Arm], where: str,
         rounds: dict[str, tuple[float, ...]]) -> None:  # fmt: skip
    function, tokens = {"b2": "softcap-50", "b3": "sigmoid", "exp2": "exp2"}[case], math.prod(SHAPES[shape])
    measurement.timings += [Timing(f"{case} {shape}", function, direction, "bf16", tokens, name.removesuffix(", bias 0"), where, r, arms[name].mix)
                            for name, r in rounds.items()]  # fmt: skip


