"""Radau IIA collocation: the constants of an L-stable implicit Runge–Kutta method of order 2s - 1, for any s.

Hairer and Wanner, Solving Ordinary Differential Equations II, sections IV.5 and IV.8.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


class Collocation(NamedTuple):
    """Radau IIA with s stages (odd).

    Attributes
    ----------
    nodes:
        c, (s,); the last one is 1, so that the last stage is the new state.
    matrix:
        the Runge–Kutta matrix, (s, s).
    shifts:
        its eigenvalues with Im ≥ 0, (k,) complex with k = (s + 1) / 2; the first is the real one.
    to_modes, from_modes:
        (k, s) and (s, k) complex: with W = from_modes, matrix^p x = Re(W shifts^p to_modes x), p = 0, 1, ...
    error_start, error_stages:
        the difference between the method and an embedded one of order s is error_start h F(t0, y0) + error_stages · z,
        with z the increments of the stages, (s,).
    """

    nodes: np.ndarray
    matrix: np.ndarray
    shifts: np.ndarray
    to_modes: np.ndarray
    from_modes: np.ndarray
    error_start: float
    error_stages: np.ndarray

    @property
    def stages(self) -> int:
        return len(self.nodes)

    @property
    def order(self) -> int:
        """Order of the state at the end of a step."""
        return 2 * self.stages - 1

    @property
    def stage_order(self) -> int:
        """Order of the stages, of the embedded method and of the interpolant: what the error estimate controls."""
        return self.stages

    def lagrange(self, fraction: Float[Array, " m"]) -> Float[Array, "m s"]:
        """Values at ``fraction`` of the Lagrange polynomials on (0, c₁ … c_s), less the one that belongs to 0.

        The increment at t0 + θh is lagrange(θ) @ increments.
        """
        points = np.concatenate([[0.0], self.nodes])
        others = [np.delete(np.arange(len(points)), i) for i in range(1, len(points))]
        scale = np.array([np.prod(points[i] - points[rest]) for i, rest in enumerate(others, start=1)])
        factors = fraction[:, None, None] - points[np.stack(others)]
        return jnp.prod(factors, axis=-1) / scale


@cache
def radau(stages: int) -> Collocation:
    """The Radau IIA method of order 2·stages - 1, for an odd number of stages (then one eigenvalue of A is real)."""
    legendre = np.polynomial.legendre
    # The nodes are the zeros of P_s - P_{s-1} on (-1, 1].
    series = np.zeros(stages + 1)
    series[-2:] = (-1.0, 1.0)
    roots = np.sort(legendre.legroots(series).real)
    for _ in range(3):
        roots = roots - legendre.legval(roots, series) / legendre.legval(roots, legendre.legder(series))
    nodes = 0.5 * (1.0 + roots)
    nodes[-1] = 1.0

    # In the Legendre basis p_k(2t - 1) values and integrals from 0 are known and well conditioned.
    basis = np.eye(stages)
    values = np.stack([legendre.legval(2 * nodes - 1, row) for row in basis], axis=1)
    integrals = np.stack([0.5 * legendre.legval(2 * nodes - 1, legendre.legint(row, lbnd=-1)) for row in basis], axis=1)
    matrix = np.linalg.solve(values.T, integrals.T).T

    eigenvalues, vectors = np.linalg.eig(matrix)
    upper = [i for i in range(stages) if eigenvalues[i].imag > -1e-12]
    kept = sorted(upper, key=lambda i: eigenvalues[i].imag)
    inverse = np.linalg.inv(vectors)
    pairs = np.where(np.abs(eigenvalues[kept].imag) > 1e-12, 2.0, 1.0)
    error_start = float(eigenvalues[kept[0]].real)

    # The embedded method uses the slope at the start with weight error_start and integrates degree s - 1 exactly.
    at_zero = np.array([legendre.legval(-1.0, row) for row in basis])
    whole = np.array([0.5 * legendre.legval(1.0, legendre.legint(row, lbnd=-1)) for row in basis])
    weights = np.linalg.solve(values.T, whole - error_start * at_zero)
    error_stages = np.linalg.solve(matrix.T, weights - matrix[-1])
    return Collocation(
        nodes, matrix, eigenvalues[kept], inverse[kept], vectors[:, kept] * pairs, error_start, error_stages
    )
