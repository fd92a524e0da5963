"""The search in the format: coefficients and clamp on the format's own grid, scored by fused replay.

For every form that fits the budget and every clamp on the format's grid:

1. a linear programme gives the real minimax solution with the tail requirement (the seed);
2. a randomised nearest-plane search looks for grid points near it (:mod:`polyfma.fit.vm`), the first
   coefficient solved exactly each time because the error is monotone in it;
3. successive halving gives the promising clamps and forms more samples, ending with pairwise steps.

Endpoint least squares, Sollya's fit (where installed) and the neighbouring degree are further starting
points. The winner of every form is certified on all inputs; only a program without faults is returned.
The same seed gives the same program on any number of threads.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfma.certify import Certificate, certify
from polyfma.errors import CoefficientError, FitError
from polyfma.fit.common import Candidate, Fit, check_degree, check_length
from polyfma.fit.inputs import Inputs, scored_inputs, wide_reach
from polyfma.fit.objective import OBJECTIVES, Objective, expected_error
from polyfma.fit.real import clamps_worth_trying, forget, jacobian, real_minimax
from polyfma.fit.request import Request, Shape, shapes
from polyfma.formats import Format, Values, get_format
from polyfma.forms import FORMS, get_form
from polyfma.forms.searched import SEARCHED
from polyfma.functions import function_scale
from polyfma.program import Program
from polyfma.replay import real_values, replay

METHOD = "lattice"
WALK = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 26, 32, 40, 52)  # the same for the walk from a finished program
MOST_WALKS = 8
NEIGHBOURS = (1, 2, 3, 5, 8, 12)  # steps of the format's grid around the best clamps that the later rounds add
# Samples for each clamp in the rounds of successive halving, and the share of clamps that stay after each.
EFFORTS: dict[str, tuple[tuple[int, float], ...]] = {
    "scout": ((40, 0.2), (300, 1.0)),
    "quick": ((60, 0.25), (400, 0.25), (3000, 1.0)),
    "normal": ((100, 0.25), (800, 0.25), (6000, 1.0)),
    "thorough": ((600, 0.4), (6000, 0.3), (100000, 1.0)),
}
# What every shape gets before the best ones get the effort asked for.
SCOUTS = {"scout": "scout", "quick": "quick", "normal": "scout", "thorough": "quick"}
POLISHED = 4  # candidates that get a last polish
MOST_CERTIFIED = 8  # candidates of equal score, of which the judged figure and the instructions decide
Progress = Callable[[int, int], None]


# -- the search ------------------------------------------------------------------------------------------


@dataclass
class _Job:
    """One clamp of one shape: its machine constants, real centre and triangular factor."""

    shape: Shape
    clamp: float
    constants: Values
    centre: Values
    r: NDArray[np.float64]
    start: Values
    real_error: float
    best: Values
    score: float = np.inf

    def program(self) -> Program:
        names = self.shape.form.free_names(self.shape.degree)
        return self.shape.program(dict(zip(names, self.best.tolist(), strict=True)) | {"clamp": self.clamp})


def _prepare(shape: Shape, clamps: Sequence[float], starts: dict[float, Values]) -> tuple[Any, list[_Job]]:
    from polyfma.fit import vm

    code, jobs = None, []
    names = shape.form.free_names(shape.degree)
    for clamp in clamps:
        solved = real_minimax(shape, clamp)
        if solved is None:
            continue
        centre, real_error, rows = solved
        try:
            if shape.form.own_coefficients is not None:
                own = shape.form.own_coefficients(centre)
                if own is None:
                    continue
                centre, rows = own, jacobian(shape, clamp, own)
        except CoefficientError:  # a factor that the format cannot hold
            continue
        inner = get_format(shape.form.inner) if shape.form.inner else shape.request.fmt
        least = inner.min_normal if inner.name == "fp16" else 0.0
        usable = np.where(np.abs(centre) < least, np.copysign(2 * least, centre), centre)
        try:
            program = shape.program(dict(zip(names, usable.tolist(), strict=True)) | {"clamp": clamp})
        except CoefficientError:
            continue
        compiled = vm.compile_program(program, names)
        code = compiled
        r = np.asarray(np.linalg.qr(rows / np.sqrt(rows.shape[0]), mode="r"), dtype=np.float64)
        if np.any(np.abs(np.diag(r)) < 1e-300):
            continue
        start = starts.get(clamp, np.full(len(names), np.nan))
        jobs.append(_Job(shape, clamp, compiled.constants, centre, r, start, real_error, centre.copy()))
    return code, jobs


def _slopes(shape: Shape, inputs: Inputs, job: _Job) -> Values:
    """The sign of the output's slope in the first coefficient, at every input, in real arithmetic."""
    names = shape.form.free_names(shape.degree)
    values = {n: float(v) for n, v in zip(names, job.centre, strict=True)} | {"clamp": job.clamp}
    inner = get_format(shape.form.inner) if shape.form.inner else shape.request.fmt
    least = 4 * inner.min_normal if inner.name == "fp16" else 0.0
    base = {n: v if abs(v) >= least or n == "clamp" else np.copysign(least, v) if least else v for n, v in values.items()}
    high = base | {names[0]: base[names[0]] + 2.0**-4 * max(abs(base[names[0]]), 2.0**-6)}
    difference = real_values(shape.program(high), inputs.x) - real_values(shape.program(base), inputs.x)
    return np.where(difference < 0, -1.0, 1.0)


def search_shape(shape: Shape, *, starts: dict[float, Values] | None = None, clamps: Sequence[float] | None = None,
                 progress: Progress | None = None) -> list[tuple[float, Program]]:  # fmt: skip
    """Candidates of one shape with their scores, best first; at most one for each clamp."""
    from polyfma.fit import vm

    fixed = clamps is not None
    clamps = list(clamps) if clamps is not None else sorted({*clamps_worth_trying(shape), *(starts or {})})
    code, jobs = _prepare(shape, clamps, starts or {})
    if not jobs:
        return []
    inputs = scored_inputs(shape.request, max(j.clamp for j in jobs))
    slopes = _slopes(shape, inputs, jobs[len(jobs) // 2])
    blocks = [vm.layout(v) for v in (inputs.x, inputs.f, inputs.low, inputs.high, inputs.weight, slopes)]
    rounds = EFFORTS[shape.request.effort]
    for i, (samples, share) in enumerate(rounds):
        _round(code, jobs, blocks, samples, seed=shape.request.seed * 1000 + i)
        jobs = sorted(jobs, key=lambda j: (j.score, j.clamp))
        jobs = jobs[: max(4, int(np.ceil(share * len(jobs))))]
        if i < len(rounds) - 1 and not fixed:
            jobs += _neighbour_jobs(shape, jobs, NEIGHBOURS)
        if progress:
            progress(i + 1, len(rounds))
    return [(j.score, j.program()) for j in jobs if np.isfinite(j.score)]


def walk(program: Program, request: Request, *, samples: int = 3000) -> Program:
    """From a program to better ones at clamps near its own, the coefficients moving with the clamp, until none is found.

    For a program of a form that the search knows; any other comes back as it is.
    """
    from polyfma.fit import vm

    form = FORMS.get(program.form)
    names = [n for n in program.consts if re.fullmatch(r"[cd]\d+", n)]
    degree = next((d for d in range(1, 10) if form and not form.published and sorted(form.free_names(d)) == sorted(names)), None)
    if form is None or degree is None or program.clamp is None or form.hardware:
        return program
    shape, clamp = Shape(form, degree, request), program.clamp
    values = np.array([program.const_value(n) for n in form.free_names(degree)])
    inputs = scored_inputs(request, wide_reach(program), every=True)
    score = np.inf
    for _ in range(MOST_WALKS):
        code, jobs = _prepare(shape, [clamp], {clamp: values})
        if not jobs:
            break
        jobs[0].best = values
        jobs += _neighbour_jobs(shape, jobs, WALK)
        slopes = _slopes(shape, inputs, jobs[0])
        blocks = [vm.layout(v) for v in (inputs.x, inputs.f, inputs.low, inputs.high, inputs.weight, slopes)]
        _round(code, jobs, blocks, samples, seed=request.seed)
        found = min(jobs, key=lambda j: (j.score, j.clamp))
        if not found.score < score:
            break
        score, clamp, values = found.score, found.clamp, found.best
        program = found.program()
    return program


def _bias_weight(request: Request) -> float:
    """The machine's ``bias``: below 0 asks for the largest error."""
    return -1.0 if request.objective.distribution is None else request.objective.bias_weight


def _neighbour_jobs(shape: Shape, jobs: list[_Job], steps: Sequence[int]) -> list[_Job]:
    """Jobs at clamps near the best ones; the best point moves with the real solution to be where they start."""
    added = _prepare(shape, _neighbours(shape, jobs, steps), {})[1]
    inner = get_format(shape.form.inner) if shape.form.inner else shape.request.fmt
    for job in added:
        moved = inner.decode(inner.encode(jobs[0].best + job.centre - jobs[0].centre))
        job.start = np.where((moved != 0) & (np.abs(moved) < inner.min_normal), np.copysign(inner.min_normal, moved), moved)
    return added


def _neighbours(shape: Shape, jobs: list[_Job], distances: Sequence[int]) -> list[float]:
    """Clamps a few steps from the best ones that are not among the jobs."""
    fmt = shape.request.fmt
    have = {j.clamp for j in jobs}
    steps = np.array([s for n in distances for s in (-n, n)])
    near = {float(v) for j in jobs[:3] for v in fmt.decode((int(fmt.encode(j.clamp)) + steps).astype(fmt.dtype))}
    return sorted(near - have)


def _round(code: Any, jobs: list[_Job], blocks: list[Values], samples: int, seed: int) -> None:
    from polyfma.fit import search_vm

    starts = np.stack([j.best if np.isfinite(j.score) else j.start for j in jobs])
    best = np.stack([j.best for j in jobs])
    # A candidate must beat what its clamp has; in the first round anything will do.
    bounds = np.array([j.score * (1 + 1e-12) for j in jobs])
    spreads = np.array([0.35 * max(j.real_error, 1e-6) + 2e-4 for j in jobs])
    seeds = np.array([seed * 7919 + i for i in range(len(jobs))])
    scores = search_vm.search_many(code.ops, np.stack([j.constants for j in jobs]), code.coefficient_slots, code.output,
                            code.coefficient_format, np.stack([j.centre for j in jobs]), np.stack([j.r for j in jobs]), starts,
                            *blocks, _bias_weight(jobs[0].shape.request), bounds, samples, spreads, seeds, best)  # fmt: skip
    for job, found, coefficients in zip(jobs, scores, best, strict=True):
        if found < job.score:
            job.score, job.best = float(found), coefficients


def fit_lattice(
    function: str, direction: str = "forward", fmt: str | Format = "bf16", degree: int = 4, *, form: str | None = None,
    clamp: float | None = None, free: bool = False, objective: str | Objective = "weighted", monotone: float | None = None,
    seed: int = 0, effort: str = "normal", seeds: Sequence[Program] = (), progress: Progress | None = None,
) -> Fit:  # fmt: skip
    """The best program found for a function within the budget of dN: at most N coefficients besides a constant term,
    N + 1 FMA-pipe and N + 6 packed instructions.

    ``form`` names one form, ``degree`` is then its own and its cost is what it is; ``clamp`` fixes the clamp; ``free`` drops tails and range; ``objective`` names what is
    minimised (:class:`Objective`); ``monotone`` bounds the certificate's ``monotone_ulps_quarter``; ``seeds`` are
    programs to start from. Raises FitError if nothing meets the requirements.
    """
    f = get_format(fmt)
    _check_options(effort, monotone, seed, free, seeds)
    check_degree(degree)
    objective = Objective(objective) if isinstance(objective, str) else objective
    if not isinstance(objective, Objective):
        raise FitError(f"objective {objective!r} must be an Objective or one of {', '.join(OBJECTIVES)}")
    request = Request(function, direction, f, degree, free, objective, monotone, seed, effort, form)
    tried = shapes(request)
    if not tried:
        raise FitError(_why_no_shape(request))
    check_length("clamp Lc", clamp, function_scale(request.target))
    if clamp is None:
        return _best_of_shapes(request, tried, None, seeds, progress)
    rounded = float(f.decode(f.encode(clamp)))
    fit = _best_of_shapes(request, tried, rounded, [s for s in seeds if s.clamp == rounded], progress)
    return fit if rounded == clamp else replace(fit, note=f"{fit.note + '; ' if fit.note else ''}clamp {clamp:.10g} is {rounded:.10g} in {f}")


def check_effort(effort: object) -> None:
    if not isinstance(effort, str) or effort not in EFFORTS:
        raise FitError(f"unknown effort {effort!r}; known: {', '.join(EFFORTS)}")


def _check_options(effort: object, monotone: object, seed: object, free: object, seeds: Sequence[object]) -> None:
    check_effort(effort)
    if monotone is not None and (isinstance(monotone, bool) or not isinstance(monotone, int | float) or not 0 <= monotone < np.inf):
        raise FitError(f"monotone {monotone!r} must be a number of ulps from 0 up")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**31:
        raise FitError(f"seed {seed!r} must be a whole number from 0 below 2^31")
    if not isinstance(free, bool):
        raise FitError(f"free {free!r} must be True or False")
    for given in seeds:
        if not isinstance(given, Program):
            raise FitError(f"seeds must be Programs, not {type(given).__name__}; polyfma.load(name) gives one")


def _why_no_shape(request: Request) -> str:
    """What keeps every form from the request."""
    target, degree = request.target, request.degree
    if request.form is not None:
        form = get_form(request.form)
        if not form.serves(target):
            return (f"form {form.name} does not serve {request.function} {request.direction}, which is {target.shape.symmetry}; it serves"
                    f" {'/'.join(form.families or form.kinds)}{' derivatives' if form.slope else ''}")  # fmt: skip
        if form.parts or form.hardware:
            return f"form {form.name} is not searched in the format: it is fitted in parts or has nothing to fit"
        return f"form {form.name} begins at degree {form.least_degree}, not {degree}"
    for form in SEARCHED:
        if form.serves(target):
            try:
                form.build("budget", request.function, request.direction, request.fmt, degree,
                           dict.fromkeys(form.free_names(degree), 0.5) | {"clamp": 4.0})  # fmt: skip
            except CoefficientError as error:
                return f"{request.name}: no form can be built: {error}"
    return f"{request.name}: no form fits the budget of {degree + 1} FMA-pipe and {degree + 6} packed instructions"


def _best_of_shapes(request: Request, tried: list[Shape], clamp: float | None, seeds: Sequence[Program],
                    progress: Progress | None) -> Fit:  # fmt: skip
    """Every shape gets a short search; those within reach of the best one the full effort."""
    forget()
    scouts = [replace(s, request=replace(request, effort=SCOUTS[request.effort])) for s in tried]
    fixed = None if clamp is None else [clamp]
    found: list[tuple[float, Program, Shape]] = []
    total = len(tried) + 3
    for i, shape in enumerate(scouts):
        for s, p in search_shape(shape, starts=_starts(shape, seeds), clamps=fixed):
            found.append((s, p, shape))
        if progress:
            progress(i + 1, total)
    if request.effort != SCOUTS[request.effort] and found:
        leaders = sorted({s.form.name: min(x[0] for x in found if x[2].form.name == s.form.name)
                          for _, _, s in found}.items(), key=lambda kv: kv[1])  # fmt: skip
        limit = 1.25 * leaders[0][1]
        for i, (name, least) in enumerate(leaders[:3]):
            if least <= limit:
                shape = next(s for s in tried if s.form.name == name)
                start = _starts(shape, [p for _, p, s in found if s.form.name == name])
                for s, p in search_shape(shape, starts=start, clamps=fixed):
                    found.append((s, p, shape))
            if progress:
                progress(len(tried) + i + 1, total)
    found = [*found, *_polished(request, found, fixed is not None)]
    fit = _certified(request, sorted(found, key=lambda x: (x[0], x[1].counts.instructions)))
    seeded = [judged(p, certify(p), request) for p in seeds if not request.accepts(certify(p))]
    if seeded and fit.score >= min(seeded):
        return replace(fit, note="the search found nothing better than the programs it started from")
    return fit


def _polished(request: Request, found: list[tuple[float, Program, Shape]], keep_clamp: bool) -> list[tuple[float, Program, Shape]]:
    """The best candidates after small steps of all their constants together."""
    from polyfma.fit.polish import polish

    better: list[tuple[float, Program, Shape]] = []
    best = sorted(found, key=lambda x: (x[0], x[1].counts.instructions))[:POLISHED]
    if best and not keep_clamp and request.effort != "scout":
        score, program, shape = best[0]
        moved = walk(program, request, samples=EFFORTS[request.effort][-1][0] // 4)
        best.insert(0, (score * (1 - 1e-9), moved, shape))
        better += best[:1] if moved != program else []
    for score, program, shape in best:
        moved = polish(program, request, keep_clamp=keep_clamp)
        if moved != program:
            better.append((score * (1 - 1e-9), moved, shape))  # below the one it came from: certified before it
    return better


def _starts(shape: Shape, seeds: Sequence[Program]) -> dict[float, Values]:
    """Coefficients of seed programs that the shape can take as they are: same model, perhaps a lower degree."""
    names = shape.form.free_names(shape.degree)
    found: dict[float, Values] = {}
    for p in seeds:
        source = FORMS.get(p.form)
        same = source is not None and source.model_of is shape.form.model_of
        if same and p.clamp is not None and p.format == shape.request.fmt.name:
            values = {n: p.const_value(n) for n in p.consts}
            if all(n in names for n in values if n[0] == "c" and n[1:].isdigit()):
                found[p.clamp] = np.array([values.get(n, 0.0) for n in names])
    return found


def _certified(request: Request, found: list[tuple[float, Program, Shape]]) -> Fit:
    """The best program without faults, judged on all inputs."""
    refusals: list[str] = []
    accepted: list[tuple[float, int, Program]] = []
    for score, program, _ in found:
        if accepted and (score > min(a[0] for a in accepted) or len(accepted) == MOST_CERTIFIED):
            break
        certificate = certify(program)
        problems = request.accepts(certificate)
        if problems:
            refusals += problems
            continue
        accepted.append((judged(program, certificate, request), program.counts.instructions, program))
    if not accepted:
        # The commonest reasons: a hundred candidates may fail by a hundred different figures.
        common = [reason for reason, _ in Counter(refusals).most_common(3)]
        reasons = ", ".join(common) or "no polynomial meets the tail requirement within the budget"
        raise FitError(f"{request.name}: the search found no program that meets the requirements: {reasons}")
    score, _, program = min(accepted, key=lambda a: (a[0], a[1]))
    candidates = tuple(Candidate(p.clamp or 0.0, p.clamp or 0.0, s) for s, p, _ in found)
    return Fit(program, METHOD, program.clamp or 0.0, program.clamp or 0.0, score, "fused", candidates)


def judged(program: Program, certificate: Certificate, request: Request) -> float:
    """The objective's figure over all finite inputs: of the certificate where it holds it, else computed here."""
    objective = request.objective
    if objective.distribution is not None:
        rms, bias = expected_error(program, objective.distribution)
        return float(np.sqrt(rms**2 + objective.bias_weight * bias**2))
    stored = {"weighted": certificate.max_weighted_error, "absolute": certificate.max_abs_error, "ulp": certificate.max_ulp,
              "ulp-quarter": certificate.max_ulp_quarter}  # fmt: skip
    if objective.name in stored and objective.limit is None:
        return stored[objective.name]
    fmt, target = program.fmt, program.target
    bits = fmt.finite_bits()
    x, f = fmt.decode(bits), target.table(fmt).exact[bits]
    error = np.abs(fmt.decode(np.asarray(replay(program, bits))) - f)
    return float(np.max(error * objective.weights(target, fmt, x, f)))
