"""Linear algebra with scale-aware decisions and derivatives that stay finite.

Tolerances here are relative: a covariance of size 1e-18 is as good as one of size 1, and coordinates measured in
different units do not make a full-rank covariance look singular.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float

from gaussflow.errors import InvalidInput, NumericalFailure

SYMMETRY_TOLERANCE = 1e-10
"""Largest accepted ``max|X - Xᵀ| / max|X|``; what is below it is rounding or a few lost printed digits."""


def rank_tolerance(size: int, dtype=np.float64) -> float:
    """Relative size below which an eigenvalue of a (size, size) symmetric matrix is rounding."""
    return 8.0 * max(size, 1) * float(np.finfo(dtype).eps)


def transpose(x: Float[Array, "*batch m n"]) -> Float[Array, "*batch n m"]:
    return jnp.swapaxes(x, -1, -2)


def symmetric_part(x: Float[Array, "*batch d d"]) -> Float[Array, "*batch d d"]:
    return 0.5 * (x + transpose(x))


def gram(factor: Float[Array, "*batch d r"]) -> Float[Array, "*batch d d"]:
    """L Lᵀ, exactly symmetric (a blocked matrix product alone is symmetric only up to rounding)."""
    product = factor @ transpose(factor)
    return 0.5 * (product + transpose(product))


def frobenius_norm(x: Float[Array, "..."]) -> Float[Array, ""]:
    """Frobenius norm by scaling with the largest entry, so that 1e-300 does not underflow when squared.

    The gradient at zero is zero.
    """
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), initial=0.0))
    scale = jnp.where(largest > 0, largest, 1.0)
    square = jnp.sum((x / scale) ** 2)
    safe = jnp.where(square > 0, square, 1.0)
    return jnp.where(square > 0, scale * jnp.sqrt(safe), 0.0)


def asymmetry(matrix: np.ndarray) -> float:
    """``max|X - Xᵀ| / max|X|`` of a concrete square matrix; 0 for the zero matrix."""
    largest = np.max(np.abs(matrix), initial=0.0)
    return float(np.max(np.abs(matrix - matrix.T), initial=0.0) / largest) if largest > 0 else 0.0


def spectral_abscissa(matrix: np.ndarray) -> float:
    """Largest real part of the eigenvalues of a concrete square matrix; -inf for an empty one."""
    return float(np.max(np.linalg.eigvals(matrix).real, initial=-np.inf))


def require_square(matrix, argument: str) -> None:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        got = "a scalar" if matrix.ndim == 0 else f"shape {tuple(matrix.shape)}"
        fix = ""
        if matrix.ndim == 1:
            fix = "write numpy.diag(...) if these are the variances of independent coordinates"
        raise InvalidInput(argument, got=got, wanted="a square matrix of shape (d, d)", fix=fix)


def require_symmetric(matrix: np.ndarray, argument: str, tolerance: float = SYMMETRY_TOLERANCE) -> None:
    defect = asymmetry(matrix)
    if defect > tolerance:
        raise InvalidInput(
            argument,
            got=f"a matrix that differs from its transpose by {defect:.3g} of its largest entry",
            wanted=f"a symmetric matrix (relative asymmetry at most {tolerance:.0e})",
            fix="pass (C + C.T) / 2 if the asymmetry is only rounding",
        )


def factor_of_covariance(covariance: np.ndarray, argument: str = "covariance") -> np.ndarray:
    """A factor L, shape (d, r), of a concrete covariance, Σ = L Lᵀ, with r its numerical rank.

    Rank is decided on the correlation matrix, so that it does not depend on the units of single coordinates; where Σ is
    definite only up to rounding of its largest entries, on Σ itself. Raises :class:`InvalidInput` if Σ is not square,
    not symmetric, or has an eigenvalue that is negative beyond rounding.
    """
    require_square(covariance, argument)
    covariance = np.asarray(covariance, dtype=np.float64)
    require_symmetric(covariance, argument)
    d = covariance.shape[0]
    largest = float(np.max(np.abs(covariance), initial=0.0))
    if d == 0 or largest == 0.0:
        return np.zeros((d, 0))
    tolerance = rank_tolerance(d)
    # Scaling by a power of two is exact and keeps tiny or huge matrices away from underflow and overflow.
    exponent = 2 * round(np.log2(largest) / 2)
    scaled = np.ldexp(0.5 * (covariance + covariance.T), -exponent)
    eigenvalues, eigenvectors = np.linalg.eigh(scaled)
    if eigenvalues[0] < -tolerance * eigenvalues[-1]:
        lowest = np.ldexp(eigenvalues[0], exponent)
        raise InvalidInput(
            argument,
            got=f"an indefinite matrix: its lowest eigenvalue is {lowest:.6g}, "
            f"{-eigenvalues[0] / max(abs(eigenvalues[-1]), abs(eigenvalues[0])):.3g} of the largest in size",
            wanted="a positive semidefinite matrix",
            fix="check the signs of the off-diagonal entries",
        )
    deviations = np.sqrt(np.maximum(np.diagonal(scaled), 0.0))
    seen = deviations > 0
    if not np.any(scaled[~seen]):
        correlation = scaled[np.ix_(seen, seen)] / np.outer(deviations[seen], deviations[seen])
        values, vectors = np.linalg.eigh(0.5 * (correlation + correlation.T))
        if values[0] >= -rank_tolerance(len(values)):
            kept = values > rank_tolerance(len(values))
            factor = np.zeros((d, int(kept.sum())))
            factor[seen] = deviations[seen, None] * vectors[:, kept] * np.sqrt(values[kept])
            return np.ldexp(factor, exponent // 2)
    kept = eigenvalues > tolerance * eigenvalues[-1]
    return np.ldexp(eigenvectors[:, kept] * np.sqrt(eigenvalues[kept]), exponent // 2)


def numerical_rank_of_factor(factor: np.ndarray) -> int:
    """Rank of a concrete factor (d, r) after scaling each row, the twin of the rule of :func:`factor_of_covariance`."""
    factor = np.asarray(factor, dtype=np.float64)
    largest = np.max(np.abs(factor), axis=-1, initial=0.0, keepdims=True)
    rows = factor / np.where(largest > 0, largest, 1.0)
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    rows = rows / np.where(norms > 0, norms, 1.0)
    if not rows.size:
        return 0
    values = np.linalg.svd(rows, compute_uv=False)
    return int(np.sum(values > max(factor.shape) * np.finfo(np.float64).eps * max(values[0], 1e-300)))


@jax.custom_jvp
def psd_sqrt(matrix: Float[Array, "*batch d d"]) -> Float[Array, "*batch d d"]:
    """Symmetric square root of a positive semidefinite matrix, with a finite derivative everywhere.

    The derivative solves X Ẋ + Ẋ X = Σ̇ in the eigenbasis; it stays finite at repeated eigenvalues (the identity), and
    where the root is singular the part of Ẋ inside the kernel, which does not exist, is set to zero. Eigenvalues that
    rounding made negative count as zero; callers validate definiteness beforehand.
    """
    return _psd_sqrt_parts(matrix)[0]


def _psd_sqrt_parts(matrix):
    values, vectors = jnp.linalg.eigh(symmetric_part(matrix))
    roots = jnp.sqrt(jnp.maximum(values, 0.0))
    root = (vectors * roots[..., None, :]) @ transpose(vectors)
    return symmetric_part(root), roots, vectors


@psd_sqrt.defjvp
def _psd_sqrt_jvp(primals, tangents):
    (matrix,), (tangent,) = primals, tangents
    root, roots, vectors = _psd_sqrt_parts(matrix)
    sums = roots[..., :, None] + roots[..., None, :]
    floor = jnp.sqrt(rank_tolerance(matrix.shape[-1], matrix.dtype)) * roots[..., -1:, None]
    regular = sums > floor
    rotated = transpose(vectors) @ symmetric_part(tangent) @ vectors
    derivative = jnp.where(regular, rotated / jnp.where(regular, sums, 1.0), 0.0)
    return root, symmetric_part(vectors @ derivative @ transpose(vectors))


class LyapunovSolution(NamedTuple):
    """Solution of A X + X Aᵀ + Q = 0, its relative residual, and the separation min|λᵢ + λⱼ| of the spectrum of A."""

    solution: np.ndarray
    residual: float
    separation: float


def solve_lyapunov(matrix: np.ndarray, right: np.ndarray, *, tolerance: float = 1e-8) -> LyapunovSolution:
    """Solve A X + X Aᵀ + Q = 0 for symmetric Q, and check the answer.

    Raises :class:`NumericalFailure` where the equation is singular or too ill-conditioned for a relative residual
    below ``tolerance``; scipy alone would return numbers of size 1e15 there.
    """
    matrix, right = np.asarray(matrix, dtype=np.float64), np.asarray(right, dtype=np.float64)
    eigenvalues = np.linalg.eigvals(matrix)
    sums = np.abs(eigenvalues[:, None] + eigenvalues[None, :])
    separation = float(np.min(sums, initial=np.inf))
    scale = float(np.linalg.norm(matrix, 2)) if matrix.size else 0.0
    if separation <= 10 * len(matrix) * np.finfo(np.float64).eps * scale:
        raise NumericalFailure(
            "the Lyapunov equation is singular: two eigenvalues of A sum to "
            f"{separation:.3g}, {separation / scale if scale else 0.0:.3g} of the norm of A"
        )
    solution = scipy.linalg.solve_continuous_lyapunov(matrix, -right)
    solution = 0.5 * (solution + solution.T)
    defect = matrix @ solution + solution @ matrix.T + right
    size = 2 * scale * np.linalg.norm(solution) + np.linalg.norm(right)
    residual = float(np.linalg.norm(defect) / size) if size > 0 else 0.0
    if not residual <= tolerance:
        raise NumericalFailure(f"the Lyapunov equation was solved only to a relative residual of {residual:.3g}")
    return LyapunovSolution(solution, residual, separation)
