"""Figures 1, 2, 4 and 5 as pictures, each written as PNG and SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from polyfma import catalog
from polyfma.catalog.build import CONTROL_DEGREES, CONTROLS
from polyfma.fit.common import Fit, reduced
from polyfma.fit.endpoint_ls import endpoint_coefficients, fit_endpoint_ls
from polyfma.formats import BF16
from polyfma.forms import get_form, published_form
from polyfma.functions import get_function
from polyfma.plots import ACCENT, INK, QUIET, SECOND, SERIES, THIRD, bars, figure, save
from polyfma.replay import real_values, replay

_REDUCTIONS = (
    ("sigmoid", "forward", "sigma(x) = 1/2 + sign(x) p(t)"),
    ("tanh", "forward", "tanh(x) = sign(x) p(t)"),
    ("silu", "forward", "silu(x) = x/2 + t p(t)"),
    ("sigmoid", "backward", "sigma'(x) = p(t)"),
)


def _write(fig: Figure, folder: Path, name: str) -> list[Path]:
    files = [folder / f"{name}.png", folder / f"{name}.svg"]
    for file in files:
        save(fig, file)
    return files


def figure1(folder: Path, progress: Any) -> list[Path]:
    """The analytic reduction: each function, and what is left of it on t = min(|x|, Lc)."""
    fig, axes = figure(13, 6, rows=2, columns=len(_REDUCTIONS))
    x = np.linspace(-7, 7, 561)
    for i, (name, direction, formula) in enumerate(_REDUCTIONS):
        target = get_function(name, direction)
        above, below = axes[:, i]
        above.plot(x, target.values(x), color=INK)
        above.axvspan(0, 7, color=QUIET, alpha=0.15, linewidth=0)
        above.set_title(formula)
        t = np.linspace(1e-3, 7, 281)
        g, _ = reduced(published_form(target), target, 4, t)
        below.plot(t, g, color=ACCENT, label="reduced target")
        fit = fit_endpoint_ls(name, direction, "bf16", 4, gates=False)
        offset, multiplier, _ = published_form(target).model(target, t, 4, fit.clamp)
        inside = t <= fit.clamp
        p = (real_values(fit.program, t) - offset)[inside] / multiplier[inside]
        below.plot(t[inside], p, color=SECOND, linestyle="--", label="p(t), D4")
        below.axvline(fit.clamp, color=QUIET, linestyle=":")
        below.annotate(f"Lc = {fit.clamp:g}", (fit.clamp, below.get_ylim()[0]), xytext=(3, 4), textcoords="offset points", color=INK)
        below.set_xlabel("t = min(|x|, Lc)")
        progress(i + 1, len(_REDUCTIONS))
    axes[0, 0].set_ylabel("f; shaded: the half that is fitted")
    axes[1, 0].set_ylabel("what p approximates")
    axes[1, 0].legend(loc="center", frameon=False)
    return _write(fig, folder, "figure1")


def figure2(folder: Path, progress: Any) -> list[Path]:
    """Sigmoid D4 in BF16: the pinned basis, the search over Li and Lc, the error in four arithmetics."""
    fit = fit_endpoint_ls("sigmoid", "forward", "bf16", 4, progress=progress)
    fig, axes = figure(17, 4.6, columns=3, width_ratios=[1, 1.15, 1.25])
    _draw_basis(axes[0, 0], fit.fit_interval)
    _draw_search(fig, axes[0, 1], fit)
    _draw_arithmetics(axes[0, 2], fit)
    return _write(fig, folder, "figure2")


def _draw_basis(ax: Any, interval: float) -> None:
    u = np.linspace(0, 1, 200)
    ax.plot(u, u, color=INK, label="u (pins the ends)")
    for j, colour in zip(range(2, 5), SERIES, strict=False):
        ax.plot(u, u**j - u, color=colour, label=f"u^{j} - u")
    ax.set_title("Basis that keeps both ends")
    ax.set_xlabel(f"u = t / Li,  Li = {interval:g}")
    ax.legend(loc="upper left", frameon=False)


def _draw_search(fig: Figure, ax: Any, fit: Fit) -> None:
    usable = [c for c in fit.candidates if np.isfinite(c.score)]
    passed = [c for c in usable if not c.refused]
    gated = [c for c in usable if c.refused]
    ax.scatter([c.fit_interval for c in gated], [c.clamp for c in gated], marker="x", s=14, color=QUIET, label="refused by a gate")
    shown = ax.scatter([c.fit_interval for c in passed], [c.clamp for c in passed], marker="s", s=26,
                       c=[1e3 * min(c.score, 0.05) for c in passed], cmap="viridis_r")  # fmt: skip
    ax.plot([fit.fit_interval], [fit.clamp], "o", markersize=11, markerfacecolor="none", markeredgecolor=ACCENT, markeredgewidth=2,
            label=f"chosen: {fit.fit_interval:g}, {fit.clamp:g}")  # fmt: skip
    fig.colorbar(shown, ax=ax, label="max |error| x 1e3, at most 50 shown")
    ax.set_title(f"Search: {len(fit.candidates)} pairs, {fit.mode} replay")
    ax.set_xlabel("fit interval Li")
    ax.set_ylabel("clamp Lc")
    ax.legend(loc="upper left", frameon=False)


def _draw_arithmetics(ax: Any, fit: Fit) -> None:
    program, target = fit.program, fit.program.target
    form = get_form(program.form)
    bits = np.arange(int(BF16.encode(1.4 * fit.clamp)) + 1, dtype=np.uint16)
    x, exact = BF16.decode(bits), target.table(BF16).exact[bits]
    offset, multiplier, matrix = form.model(target, x, program.degree, fit.clamp)
    unrounded = offset + multiplier * (matrix @ endpoint_coefficients(form, target, program.degree, fit.fit_interval))
    curves = (
        ("split replay", BF16.decode(np.asarray(replay(program, bits, mode="split"))), QUIET),
        ("fused replay", BF16.decode(np.asarray(replay(program, bits))), ACCENT),
        ("real, BF16 coefficients", real_values(program, x), SECOND),
        ("real, float64 coefficients", unrounded, THIRD),
    )
    for label, y, colour in curves:
        ax.plot(x, 1e3 * (y - exact), color=colour, linewidth=0.9, label=f"{label}: {1e3 * np.max(np.abs(y - exact)):.2f}")
    ax.set_title("Error in four arithmetics")
    ax.set_xlabel("x")
    ax.set_ylabel("error x 1e3")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, title="max |error| x 1e3")


def figure4(folder: Path, progress: Any) -> list[Path]:
    """Error of D3 to D6, forward, from the catalogue's certificates (BF16, fused replay, all inputs)."""
    return _sweep(folder, "figure4", "forward", progress)


def figure5(folder: Path, progress: Any) -> list[Path]:
    """Error of D3 to D6, backward."""
    return _sweep(folder, "figure5", "backward", progress)


def _sweep(folder: Path, name: str, direction: str, progress: Any) -> list[Path]:
    functions = ("sigmoid", "tanh", "silu")
    fig, axes = figure(12, 4, columns=3)
    for i, function in enumerate(functions):
        ax = axes[0, i]
        certificates = {
            (method, degree): catalog.record(f"{function}.{direction}.bf16.d{degree}.{method}")["certificate"]
            for method in CONTROLS
            for degree in CONTROL_DEGREES
        }
        ours = [1e3 * catalog.record(f"{function}.{direction}.bf16.d{d}")["certificate"]["max_weighted_error"] for d in CONTROL_DEGREES]
        series = [(method, [1e3 * certificates[method, d]["max_weighted_error"] for d in CONTROL_DEGREES], colour)
                  for method, colour in zip(CONTROLS, (QUIET, SECOND), strict=True)]  # fmt: skip
        series.append(("best in the format, exact tails", ours, ACCENT))
        bars(ax, [f"D{d}" for d in CONTROL_DEGREES], series)
        floor = 1e3 * certificates[CONTROLS[0], 3]["floor_weighted_error"]
        ax.axhline(floor, color=INK, linewidth=1, linestyle="--", label=f"correct rounding {floor:.2f}")
        ax.set_title(f"{function}{'' if direction == 'forward' else chr(39)}, BF16")
        ax.legend(frameon=False)
        ax.grid(axis="x", visible=False)
        ax.margins(y=0.25)
        progress(i + 1, len(functions))
    axes[0, 0].set_ylabel("max |e| / max(1, |f|/2), x 1e3")
    return _write(fig, folder, name)
