"""Explicit Runge–Kutta pairs, taken from diffrax, ready for a step whose stages are unrolled.

A step written out stage by stage compiles to a fraction of the kernels of a loop over stages; at d = 2 to 32, where
XLA's dispatch and not arithmetic sets the pace, that is worth a factor of two to three.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import diffrax
import numpy as np

from gaussflow.errors import InvalidInput

SOLVERS: dict[str, Callable[[], Any]] = {
    "heun": diffrax.Heun,
    "midpoint": diffrax.Midpoint,
    "ralston": diffrax.Ralston,
    "bosh3": diffrax.Bosh3,
    "tsit5": diffrax.Tsit5,
    "dopri5": diffrax.Dopri5,
    "dopri8": diffrax.Dopri8,
}
"""Names accepted for ``solver``; any explicit Runge–Kutta solver of diffrax may be passed as an object too."""


@dataclass(frozen=True, eq=False)
class Tableau:
    """Coefficients of an explicit embedded pair, as plain floats (zeros are dropped at trace time).

    Compared by identity, which makes it a cheap static argument: there is one object for each solver.
    """

    name: str
    rows: tuple[tuple[float, ...], ...]
    nodes: tuple[float, ...]
    weights: tuple[float, ...]
    error_weights: tuple[float, ...]
    order: int
    interpolant: Any

    @property
    def stages(self) -> int:
        return len(self.weights)

    @property
    def first_same_as_last(self) -> bool:
        """Whether the last stage is the slope at the end of the step, the next step's first."""
        return self.rows[-1] == self.weights[:-1] and self.weights[-1] == 0.0 and self.nodes[-1] == 1.0

    @property
    def sees_stiffness(self) -> bool:
        """Whether the last two stages both sit at the end of the step, so that their difference measures h‖J‖."""
        return self.first_same_as_last and self.stages > 2 and self.nodes[-2] == 1.0


def tableau_of(solver: Any) -> Tableau:
    """The tableau of a solver given by name or as a diffrax solver.

    Raises :class:`InvalidInput` for unknown names and for solvers that are not explicit Runge–Kutta methods.
    """
    if isinstance(solver, str):
        if solver.lower() not in SOLVERS:
            raise InvalidInput("solver", got=repr(solver), wanted=f"one of {', '.join(SOLVERS)}, or a diffrax solver")
        return _from_diffrax(SOLVERS[solver.lower()])
    if not isinstance(solver, diffrax.AbstractERK):
        raise InvalidInput(
            "solver",
            got=type(solver).__name__,
            wanted=f"an explicit Runge-Kutta solver of diffrax, or one of {', '.join(SOLVERS)}",
            fix="for an implicit method pass method='stiff'",
        )
    return _from_diffrax(type(solver))


@cache
def _from_diffrax(kind: Callable[[], Any]) -> Tableau:
    solver = kind()
    table = solver.tableau
    return Tableau(
        name=type(solver).__name__.lower(),
        rows=tuple(tuple(float(x) for x in np.asarray(row)) for row in table.a_lower),
        nodes=(0.0, *(float(x) for x in np.asarray(table.c))),
        weights=tuple(float(x) for x in np.asarray(table.b_sol)),
        error_weights=tuple(float(x) for x in np.asarray(table.b_error)),
        order=int(solver.order(None)),
        interpolant=solver.interpolation_cls,
    )
