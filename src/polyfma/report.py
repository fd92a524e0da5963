"""One self-contained HTML page about the fitted programs: Pareto pictures, error curves, certificates."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from polyfma import __version__, catalog
from polyfma.certify import certify
from polyfma.files import replacing
from polyfma.pareto import entries, front
from polyfma.plots import error_picture, pareto_picture

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2 { font-weight: 600; } h2 { margin-top: 2.5rem; border-top: 1px solid #e4e7eb; padding-top: 1rem; }
table { border-collapse: collapse; } td, th { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #e4e7eb; }
td:first-child, th:first-child { text-align: left; font-family: ui-monospace, monospace; }
details { margin: .4rem 0; } summary { cursor: pointer; font-family: ui-monospace, monospace; }
svg, img { max-width: 100%; height: auto; } pre { background: #f5f7fa; padding: .7rem; overflow-x: auto; }
"""


def write_fits(path: Path, progress: Callable[..., None]) -> None:
    """Write the page. Nothing in it is loaded from a network: the pictures are in it."""
    with replacing(path) as temporary:  # before the work: a path that cannot be written is refused at once
        temporary.write_text(_page(progress), encoding="utf-8")


def _page(progress: Callable[..., None]) -> str:
    everything = entries()
    keys = list(dict.fromkeys((e.function, e.direction) for e in everything))
    parts = [f"<!doctype html><html lang=en><meta charset=utf-8><title>polyfma: fitted programs</title><style>{_STYLE}</style>",
             f"<h1>Fitted programs of polyfma {__version__}</h1>",
             f"<p>{len(everything)} programs. Errors are weighted by 1/max(1, |f|/2), over every finite input, fused.</p>"]  # fmt: skip
    for i, (function, direction) in enumerate(keys):
        here = [e for e in everything if (e.function, e.direction) == (function, direction)]
        parts.append(f"<h2>{html.escape(function)} {direction}</h2>")
        parts.append(_svg(pareto_picture(here)))
        best = [e for fmt in ("bf16", "fp16") for e in front(e for e in here if e.default and e.format == fmt)]
        parts.append("<table><tr><th>program<th>instructions<th>FMA<th>error x 1e3<th>ulp</tr>")
        parts += [f"<tr><td>{e.name}<td>{e.instructions}<td>{e.fma}<td>{1e3 * e.error:.4g}<td>{e.max_ulp:.4g}</tr>" for e in best]
        parts.append("</table>")
        parts += [_details(e.name) for e in best]
        progress(i + 1, len(keys))
    return "\n".join(parts) + "\n"


def _details(name: str) -> str:
    """A fold-out with the program's operations, certificate and error curve."""
    program = catalog.load(name)
    certificate = certify(program)
    rows = "".join(f"<tr><td>{html.escape(a)}<td style='text-align:left'>{html.escape(b)}</tr>" for a, b in certificate.summary())
    listing = html.escape("\n".join(program.listing()))
    return (f"<details><summary>{name}</summary><pre>{listing}</pre><p>digest {program.digest}</p><table>{rows}</table>"
            f"{_png(error_picture(program, certificate), name)}</details>")  # fmt: skip


def _png(figure: Figure, name: str) -> str:
    """An error curve has tens of thousands of points: drawn as vectors it takes megabytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=80)
    return f"<img alt='error of {html.escape(name)}' src='data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}'>"


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": "polyfma"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


