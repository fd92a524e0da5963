"""Whether a program may stand in a model: its tails must be exact, or its error grows with the input without bound."""

from __future__ import annotations

from polyfma import catalog
from polyfma.certify import certify
from polyfma.errors import PolyfmaError
from polyfma.ops.choice import program_of


def check_tails(key: str, where: str) -> None:
    """Raises PolyfmaError for a program (by its key) whose certificate does not have exact tails.

    A dense model's gates have outliers in the hundreds, where x p(x) with p one rounding step off 0 or 1 is off by |x| steps: the
    published substitution lost a model to it (perplexity 8.7 to 198) while its error on [-12, 12] looked small.
    """
    program = program_of(key)
    exact = catalog.record(program.name)["certificate"]["tails"]["exact"] if key in catalog.programs() else certify(program).exact_tails
    if not exact:
        raise PolyfmaError(f"{where or 'the model'}: program {program.name} has no exact tails, so its error grows with the input;"
                           " take another, or say Config(inexact_tails=True) and measure (polyfma profile)")  # fmt: skip
