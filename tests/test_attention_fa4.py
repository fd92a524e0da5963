"""Attention kernels compiled without a GPU: what instructions each pair of scores became, and what an unknown FlashAttention-4 gets."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from polyfma.errors import MissingToolError

pytest.importorskip("flash_attn.cute")
pytest.importorskip("triton")  # brings ptxas, cuobjdump and nvdisasm
GAP, D6 = "tanh.forward.fp16.fp32-unit-gap-d7", "tanh.forward.fp16.unit-odd-d6"
COUPLED = "sigmoid.forward.bf16.coupled-d3.endpoint-ls"
S3 = "sigmoid.forward.bf16.odd-square-relu-d3.normal"
SOFTCAPS = ("hardware", GAP, f"hardware+hardware+{GAP}", f"hardware+{D6}")
SIGMOIDS = ("hardware", "exponential", S3, f"hardware+{S3}")
# A thread holds 64 scores of a 128 x 128 tile (SM90), 128 of a row (SM100), in three pieces of code: the first tile, tiles with
# a mask, and tiles without one; backward there is one piece of 32. So a MUFU a score is 192, 384 or 32, and an instruction a pair half.
SCORES = {"sm_90a": 64, "sm_100a": 128}
COPIES, BACKWARD = 3, 32
FMAS = {D6: 5, S3: 4}  # packed multiplications and additions of a pair: HFMA2 of what is fused, HMUL2 apart


@cache
def compiled(arch: str) -> dict[str, dict[str, dict[str, int]]]:
    script = Path(__file__).parent / "fa4_compile.py"
    done = subprocess.run([sys.executable, str(script), arch], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def pairs(mix: str, part: str, scores: int) -> int:
    """How many of a thread's pairs a part of a mix computes."""
    parts = mix.split("+")
    return sum(parts[i % len(parts)] == part for i in range(scores // 2))


def check_softcap_kernels_for_sm90(mix: str) -> None:
    """A tanh.approx for each hardware score, one clamp for each of a program, an exponential for each; and no running maximum."""
    for direction, copies, scores in (("forward", COPIES, SCORES["sm_90a"]), ("backward", 1, BACKWARD)):
        counts = compiled("sm_90a")[f"softcap {mix}"][direction]
        assert counts.get("MUFU.TANH", 0) == 2 * copies * pairs(mix, "hardware", scores)
        assert counts["MUFU.EX2"] == copies * scores
        assert counts.get("FMNMX", 0) == 2 * copies * pairs(mix, GAP, scores)
        assert counts.get("HMNMX2", 0) == copies * pairs(mix, D6, scores)
        slope = 1 if direction == "backward" else 0
        assert counts.get("HFMA2", 0) == copies * pairs(mix, D6, scores) * (FMAS[D6] + slope)
        assert not counts["serialized"]


def check_sigmoid_kernels_for_sm90(mix: str) -> None:
    """Weights of programs go into the second product as they are, and that does not make the products wait for each other."""
    for direction, copies, scores in (("forward", COPIES, SCORES["sm_90a"]), ("backward", 1, BACKWARD)):
        counts = compiled("sm_90a")[f"sigmoid {mix}"][direction]
        assert counts.get("MUFU.TANH", 0) == 2 * copies * pairs(mix, "hardware", scores)
        assert counts.get("MUFU.EX2", 0) == counts.get("MUFU.RCP", 0) == 2 * copies * pairs(mix, "exponential", scores)
        assert counts.get("HMNMX2", 0) == copies * pairs(mix, S3, scores)
        assert counts.get("HFMA2", 0) == copies * pairs(mix, S3, scores) * 3  # its multiplication is an HMUL2
        assert not counts["serialized"]


def check_coupled_kernels(arch: str) -> None:
    """Forward the value alone, backward with its own derivative: more multiplications there a pair."""
    both = compiled(arch)[f"sigmoid {COUPLED}"]
    assert not both["forward"].get("MUFU.TANH") and not both["forward"]["serialized"]
    if "backward" in both:
        assert both["backward"]["HFMA2"] / (BACKWARD // 2) > both["forward"]["HFMA2"] / (COPIES * SCORES[arch] // 2)


def check_exp2_kernels_for_sm90() -> None:
    """Every third pair forward, of 16 in each of a thread's two rows less the last two, in the one piece of code without a mask; every eighth backward."""
    software = {"forward": 2 * len([i for i in range(14) if i % 3 == 1]), "backward": len([i for i in range(16) if i % 8 == 1])}
    for name in ("exp2.forward.fp16.pwl2.minimax", "exp2.forward.fp16.d3.published"):
        both = compiled("sm_90a")[f"exp2 {name}"]
        factors = 2 * (COPIES - 1)  # of the output's rows, but in the first tile
        assert both["forward"]["MUFU.EX2"] == COPIES * SCORES["sm_90a"] + factors - 2 * software["forward"]
        assert both["backward"]["MUFU.EX2"] == BACKWARD - 2 * software["backward"]


def check_softcap_kernels_for_sm100(mix: str) -> None:
    """Compiled and counted, never run: there FlashAttention-4 computes some of its exponentials by polynomials of its own."""
    counts, scores = compiled("sm_100a")[f"softcap {mix}"]["forward"], SCORES["sm_100a"]
    assert counts.get("MUFU.TANH", 0) == 2 * COPIES * pairs(mix, "hardware", scores)
    assert counts["MUFU.EX2"] < COPIES * scores
    assert counts.get("HMNMX2", 0) == COPIES * pairs(mix, D6, scores)


def check_sigmoid_kernels_for_sm100(mix: str) -> None:
    counts, scores = compiled("sm_100a")[f"sigmoid {mix}"]["forward"], SCORES["sm_100a"]
    assert counts.get("MUFU.TANH", 0) == 2 * COPIES * pairs(mix, "hardware", scores)
    assert counts.get("MUFU.EX2", 0) == 2 * COPIES * pairs(mix, "exponential", scores)
    assert counts.get("HMNMX2", 0) == COPIES * pairs(mix, S3, scores)


def check_own_hooks(arch: str, scores: int, backward: int) -> None:
    """A tanh a score, backward too, where the compiler finds that two hooks ask for the same one; no division."""
    softcap, sigmoid = (compiled(arch)[f"{name} by score_mod"] for name in ("softcap", "sigmoid"))
    assert softcap["forward"]["MUFU.TANH"] == COPIES * scores
    assert softcap["backward"]["MUFU.TANH"] == backward
    assert softcap["forward"].get("MUFU.RCP", 0) < 10
    assert sigmoid["forward"]["MUFU.LG2"] >= COPIES * scores


def test_every_kernel_for_sm90() -> None:
    """One test, because each process that asks compiles them all."""
    for mix in SOFTCAPS:
        check_softcap_kernels_for_sm90(mix)
    for mix in SIGMOIDS:
        check_sigmoid_kernels_for_sm90(mix)
    check_exp2_kernels_for_sm90()
    check_coupled_kernels("sm_90a")
    assert not compiled("sm_90a")["sigmoid sigmoid.forward.bf16.fp32-fused-odd-limited-d6"]["forward"]["serialized"]
    check_own_hooks("sm_90a", SCORES["sm_90a"], BACKWARD)


def test_every_kernel_for_sm100() -> None:
    for mix in SOFTCAPS:
        check_softcap_kernels_for_sm100(mix)
    for mix in SIGMOIDS:
        check_sigmoid_kernels_for_sm100(mix)
    check_coupled_kernels("sm_100a")
    check_own_hooks("sm_100a", SCORES["sm_100a"], 64)


def test_kernels_of_others_are_left_alone_meanwhile() -> None:
    """Inside our context a call without a hook makes FlashAttention-4's own kernels, and what stands in for globals is one thread's."""
    import threading

    from flash_attn.cute import interface
    from flash_attn.cute.flash_fwd_sm90 import FlashAttentionForwardSm90

    from polyfma.attention.fa4 import hooks
    from polyfma.attention.fa4.here import here

    class Ours:
        def __init__(self, **_: object) -> None:
            pass

    class Plain(Ours):
        pass

    make = hooks._chooser(Ours, Plain)
    assert type(make(score_mod=hooks.Hook("x"))) is Ours
    assert type(make(score_mod=None)) is type(make(score_mod=lambda: None)) is type(make()) is Plain

    def fails() -> None:
        with hooks.kernels(), hooks.kernels(hooks.WeightsBackward):
            assert interface.FlashAttentionForwardSm90 is not FlashAttentionForwardSm90
            raise RuntimeError("whatever happens inside")

    with pytest.raises(RuntimeError):
        fails()
    assert interface.FlashAttentionForwardSm90 is FlashAttentionForwardSm90
    seen: list[str] = []
    call = here(lambda: seen.append("ours"), lambda: seen.append("plain"))
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    call()
    assert seen == ["plain", "ours"]


def test_another_source_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flash_attn.cute.flash_bwd_sm90 import FlashAttentionBackwardSm90

    from polyfma.attention.fa4 import hooks
    from polyfma.attention.fa4.edits import edited

    monkeypatch.setenv("POLYFMA_CACHE_DIR", str(tmp_path))
    method = FlashAttentionBackwardSm90.mma_one_m_block
    with pytest.raises(MissingToolError, match=r"not the source that our edits are for .*; tested: flash-attn-4 1"):
        edited(method, "0" * 64, (), "flash-attn-4 1")
    with pytest.raises(MissingToolError, match="0 times, not once"):
        edited(method, hooks._M_BLOCK, (("nothing like this", ""),), "flash-attn-4 1")
    assert callable(edited(method, hooks._M_BLOCK, hooks._EDITS, "flash-attn-4 1"))
    (written,) = (tmp_path / "edited").iterdir()
    assert "self.score_mod.weights(acc_S)" in written.read_text()


def test_another_version_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from polyfma.attention.fa4 import versions

    versions.problem.cache_clear()
    monkeypatch.setattr(versions, "version", lambda package: "5.0" if package == "flash-attn-4" else versions.TESTED[package][0])
    try:
        with pytest.raises(MissingToolError, match=r"flash-attn-4 5\.0 is not a tested version; tested: 4\.0\.0b36"):
            versions.check()
    finally:
        versions.problem.cache_clear()
