"""The errors and warnings of gaussflow.

Every refusal of an input is an :class:`InvalidInput` whose one-line text names the argument, what it got, what is
wanted and the likely fix, so that the command line can print it as it is.
"""

from __future__ import annotations

import warnings


class GaussflowError(Exception):
    """Base class of everything gaussflow raises on purpose."""


class InvalidInput(GaussflowError, ValueError):
    """An argument that cannot be used.

    Parameters
    ----------
    argument:
        The name of the offending argument, as the caller wrote it (``"covariance"``, ``"parameters.A"``).
    got:
        What was received, in words or numbers.
    wanted:
        What would have been accepted.
    fix:
        The likely repair, phrased as an instruction; optional.
    """

    def __init__(self, argument: str, *, got: str, wanted: str, fix: str = ""):
        self.argument, self.got, self.wanted, self.fix = argument, got, wanted, fix
        text = f"{argument}: got {got}; wanted {wanted}"
        super().__init__(" ".join(f"{text}; {fix}".split()) if fix else " ".join(text.split()))

    def __reduce__(self):  # keyword-only constructors do not pickle by default
        return (_rebuild_invalid_input, (self.argument, self.got, self.wanted, self.fix))


def _rebuild_invalid_input(argument: str, got: str, wanted: str, fix: str) -> InvalidInput:
    return InvalidInput(argument, got=got, wanted=wanted, fix=fix)


class UnreadableFile(GaussflowError, OSError):
    """A file that is missing, empty or not what its name says."""


class MissingExtra(GaussflowError, ImportError):
    """An optional dependency that is not installed; the text says which extra brings it."""


class NumericalFailure(GaussflowError, ArithmeticError):
    """A computation that could not reach a trustworthy answer; the text names the cause."""


class PrecisionWarning(UserWarning):
    """JAX runs in single precision; results carry about seven digits."""


_warned_about_precision = False


def warn_about_single_precision() -> None:
    """Warn once per process that 64-bit floats are off, and say how to turn them on."""
    global _warned_about_precision
    if not _warned_about_precision:
        _warned_about_precision = True
        warnings.warn(
            "JAX is in single precision, so gaussflow keeps about 7 digits; for 16 add "
            'jax.config.update("jax_enable_x64", True) at the start of the program',
            PrecisionWarning,
            stacklevel=4,
        )
