"""Source text of a Program for every kernel language, with the same bits in each."""

from __future__ import annotations

from collections.abc import Sequence

from polyfma.emit.architecture import DEFAULT, get_architecture
from polyfma.emit.c import c_source
from polyfma.emit.cuda import cuda_source
from polyfma.emit.cute import cute_source
from polyfma.emit.header import Scaling, comment_lines
from polyfma.emit.hybrid import Hybrid, hybrid_source
from polyfma.emit.lowering import LAYOUTS, check_outputs
from polyfma.emit.ptx import ptx_source
from polyfma.emit.triton import triton_source
from polyfma.errors import ProgramError, UnknownNameError
from polyfma.folding import fold
from polyfma.program import Program

__all__ = ["EXTENSIONS", "TARGETS", "Hybrid", "emit"]
TARGETS = ("ptx", "cuda", "triton", "cute", "c")
# The file that an emitted source belongs in.
EXTENSIONS = {"ptx": ".ptx", "cuda": ".cuh", "triton": ".py", "cute": ".py", "c": ".h"}


def emit(program: Program | Hybrid, target: str, *, arch: str | None = None, layout: str | None = None,
         outputs: Sequence[str] | None = None, input_scale: float = 1.0, output_scale: float = 1.0) -> str:  # fmt: skip
    """The source of a program for a target: ``ptx``, ``cuda``, ``triton``, ``cute`` or ``c``; of a :class:`Hybrid` for
    ``cuda`` or ``cute``.

    ``arch`` (default sm_90) is the least architecture for ptx, triton and cute; a CUDA header holds every
    architecture from sm_80, C has none. ``layout`` picks one of ``packed`` (16-bit pairs in and out),
    ``f32-packed`` (two fp32 in, a 16-bit pair out) and ``f32`` (two fp32 in and out); default: packed for ptx, all
    for cuda, triton and cute. ``outputs`` picks outputs of a coupled program (``value``, ``derivative``). The scales
    are folded into the constants (:func:`polyfma.folding.fold`).

    Raises UnknownNameError for an unknown target, architecture, layout or output, ProgramError for an architecture
    that lacks an instruction, CoefficientError where a scaled constant does not fit its format.
    """
    if not isinstance(program, Program | Hybrid):
        raise ProgramError(f"emit takes a Program, not {type(program).__name__}; polyfma.load(name) gives one")
    if target not in TARGETS:
        raise UnknownNameError(f"unknown target {target!r}; known: {', '.join(TARGETS)}")
    if layout is not None and layout not in LAYOUTS:
        raise UnknownNameError(f"unknown layout {layout!r}; known: {', '.join(LAYOUTS)}")
    for what, given in (("arch", arch), ("layout", layout)):
        if given is not None and (target == "c" or (target == "cuda" and what == "arch")):
            raise UnknownNameError(f"target {target} takes no {what}: " + ("a header serves every architecture from sm_80 on"
                                   if target == "cuda" else "it is portable C on one bit pattern"))  # fmt: skip
    arch = DEFAULT if arch is None else arch
    if isinstance(program, Hybrid):
        if outputs is not None:
            raise UnknownNameError("a hybrid has one output; outputs cannot be chosen")
        folded_pair = [fold(p, input_scale=input_scale, output_scale=output_scale) for p in (program.hardware, program.polynomial)]
        bases = zip(folded_pair, (program.hardware, program.polynomial), strict=True)
        scalings = {f.digest: Scaling(p, input_scale, output_scale) for f, p in bases if f is not p}
        program = Hybrid(folded_pair[0], folded_pair[1], program.period, program.hardware_pairs)
        return hybrid_source(program, target, arch, layout, lambda p: comment_lines(p, tuple(p.outputs), scalings.get(p.digest)))
    folded = fold(program, input_scale=input_scale, output_scale=output_scale)
    chosen = check_outputs(folded, outputs)
    scaling = None if folded is program else Scaling(program, input_scale, output_scale)
    return _source(folded, target, arch, layout, chosen, comment_lines(folded, chosen, scaling))


def _source(program: Program, target: str, arch: str, layout: str | None, outputs: tuple[str, ...], comments: Sequence[str]) -> str:
    if target == "c":
        return c_source(program, outputs, comments)
    if target == "cuda":
        return cuda_source(program, outputs, layout, comments)
    architecture = get_architecture(arch)
    if target == "ptx":
        return ptx_source(program, outputs, architecture, layout or "packed", comments)
    return (triton_source if target == "triton" else cute_source)(program, outputs, architecture, layout, comments)
