"""The command line: ``polyfma fit | certify | list | show | emit | audit | catalog | bench | profile | evaluate | reproduce | doctor``.

Results go to stdout, as a table or with ``--json`` as JSON; progress and messages to stderr. Bad input
exits with status 2 and one line; ``certify`` exits with 1 when a stored certificate no longer holds.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

# isort: off
from polyfma.cli import fitting, catalogue, kernels, bench, models, reproducing  # noqa: F401 - each adds its commands, in this order
# isort: on
from polyfma.cli.shell import app, err
from polyfma.errors import PolyfmaError

# ClickException, the base of typer's own complaints, which typer does not export.
CLICK_ERROR: type[Any] = typer.BadParameter.__mro__[2]


@app.callback(invoke_without_command=True)
def version_option(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from polyfma import __version__

        print(__version__)
        raise typer.Exit


def main() -> None:
    """Entry point of the ``polyfma`` command."""
    try:
        status = app(standalone_mode=False)
        if status == 130:  # typer's status for Ctrl-C
            raise KeyboardInterrupt
        sys.exit(status)
    except CLICK_ERROR as error:  # a word that is not a number, an unknown option
        if message := error.format_message():  # without a command typer has printed the help, and there is none
            err.print(f"polyfma: {message} (polyfma --help)", markup=False, soft_wrap=True)
        sys.exit(2)
    except PolyfmaError as error:
        err.print(f"polyfma: {error}", markup=False, soft_wrap=True)
        sys.exit(2)
    except OSError as error:
        err.print(f"polyfma: cannot write or read {error.filename or 'a file'}: {error.strerror}", markup=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        err.print("polyfma: interrupted")
        sys.exit(130)
