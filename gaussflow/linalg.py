"""Linear algebra with scale-aware decisions and derivatives that stay finite.

Tolerances here are relative: a covariance of size 1e-18 is as good as one of size 1, and coordinates measured in
different units do not make a full-rank covariance look singular.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float, Num

from gaussflow.arrays import input_precision
from gaussflow.errors import InvalidInput, NumericalFailure

SYMMETRY_TOLERANCE = 1e-10
"""Largest accepted ``max|X - Xᵀ| / max|X|``; what is below it is rounding or a few lost printed digits."""


def rank_tolerance(size: int, dtype=np.float64) -> float:
    """Relative size below which an eigenvalue of a (size, size) symmetric matrix is rounding."""
    return 8.0 * max(size, 1) * float(jnp.finfo(dtype).eps)


def transpose(x: Float[Array, "*batch m n"]) -> Float[Array, "*batch n m"]:
    return jnp.swapaxes(x, -1, -2)


def symmetric_part(x: Float[Array, "*batch d d"]) -> Float[Array, "*batch d d"]:
    return 0.5 * (x + transpose(x))


def gram(factor: Float[Array, "*batch d r"]) -> Float[Array, "*batch d d"]:
    """L Lᵀ, exactly symmetric (a blocked matrix product alone is symmetric only up to rounding)."""
    product = factor @ transpose(factor)
    return 0.5 * (product + transpose(product))


def frobenius_norm(x: Float[Array, "*_"]) -> Float[Array, ""]:
    """Frobenius norm by scaling with the largest entry, so that 1e-300 does not underflow when squared.

    The gradient at zero is zero.
    """
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), initial=0.0))
    scale = jnp.where(largest > 0, largest, 1.0)
    square = jnp.sum((x / scale) ** 2)
    safe = jnp.where(square > 0, square, 1.0)
    return jnp.where(square > 0, scale * jnp.sqrt(safe), 0.0)


def row_norms(x: Float[Array, "d r"]) -> Float[Array, " d"]:
    """Euclidean norm of every row, scaled like :func:`frobenius_norm`; for a factor, the standard deviations."""
    return jax.vmap(frobenius_norm)(x)


def asymmetry(matrix: np.ndarray) -> float:
    """``max|X - Xᵀ| / max|X|`` of a concrete square matrix; 0 for the zero matrix."""
    largest = np.max(np.abs(matrix), initial=0.0)
    if largest == 0.0:
        return 0.0
    relative = matrix / largest  # first, since differences of huge entries would overflow
    return float(np.max(np.abs(relative - relative.T)))


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


def factor_of_covariance(covariance: Any, argument: str = "covariance") -> np.ndarray:
    """A factor L, shape (d, r), of a concrete covariance, Σ = L Lᵀ, with r its numerical rank.

    Rank is decided on the correlation matrix, so that it does not depend on the units of single coordinates; where Σ is
    definite only up to rounding of its largest entries, on Σ itself. Input in single or half precision is judged by the
    rounding it came with. Raises :class:`InvalidInput` if Σ is not square, not symmetric, or has an eigenvalue that is
    negative beyond rounding.
    """
    dtype = input_precision(covariance)
    covariance = np.asarray(covariance, dtype=np.float64)
    require_square(covariance, argument)
    d = covariance.shape[0]
    tolerance = rank_tolerance(d, dtype)
    require_symmetric(covariance, argument, max(SYMMETRY_TOLERANCE, tolerance))
    largest = float(np.max(np.abs(covariance), initial=0.0))
    if largest == 0.0:
        return np.zeros((d, 0))
    # Scaling by a power of two is exact and keeps tiny or huge matrices away from underflow and overflow.
    exponent = 2 * round(np.log2(largest) / 2)
    scaled = np.ldexp(covariance, -exponent)
    scaled = 0.5 * (scaled + scaled.T)
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
        if values[0] >= -tolerance:
            kept = values > tolerance
            factor = np.zeros((d, int(kept.sum())))
            factor[seen] = deviations[seen, None] * vectors[:, kept] * np.sqrt(values[kept])
            return np.ldexp(factor, exponent // 2)
    kept = eigenvalues > tolerance * eigenvalues[-1]
    return np.ldexp(eigenvectors[:, kept] * np.sqrt(eigenvalues[kept]), exponent // 2)


def factor_of_traced_covariance(covariance: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """A square factor of a covariance whose numbers cannot be looked at, by the same rule of rank.

    It is D R^½ with the correlation matrix R and the standard deviations D, held fixed: Σ = L Lᵀ stays true near by, so
    that derivatives of anything computed from Σ are right, whatever the units of single coordinates. Directions that
    :func:`factor_of_covariance` would drop are zero; where it would refuse an indefinite matrix the factor is NaN.

    At a singular Σ derivatives are right along every direction in which Σ can move both ways and stay semidefinite;
    new directions enter like the square root of their variance and have no derivative.
    """
    variances = jax.lax.stop_gradient(jnp.diagonal(covariance))
    deviations = jnp.sqrt(jnp.where(variances > 0, variances, 1.0))
    correlation = covariance / deviations[:, None] / deviations[None, :]
    tolerance = rank_tolerance(covariance.shape[-1], covariance.dtype)
    return deviations[:, None] * psd_sqrt(correlation, tolerance)


def numerical_rank_of_factor(factor: Any) -> int:
    """Rank of a concrete factor (d, r), each row scaled to norm one as in :func:`factor_of_covariance`."""
    tolerance = rank_tolerance(max(np.shape(factor)), input_precision(factor))
    factor = np.asarray(factor, dtype=np.float64)
    largest = np.max(np.abs(factor), axis=-1, initial=0.0, keepdims=True)
    rows = factor / np.where(largest > 0, largest, 1.0)
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    rows = rows / np.where(norms > 0, norms, 1.0)
    if not rows.size:
        return 0
    values = np.linalg.svd(rows, compute_uv=False)
    return int(np.sum(values > tolerance * values[0]))


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def psd_sqrt(matrix: Float[Array, "*batch d d"], cutoff: float | None = None) -> Float[Array, "*batch d d"]:
    """Symmetric square root of a positive semidefinite matrix, with a finite derivative everywhere.

    The derivative solves X Ẋ + Ẋ X = Σ̇ in the eigenbasis; it stays finite at repeated eigenvalues (the identity), and
    where the root is singular the part of Ẋ inside the kernel, which does not exist, is set to zero. Eigenvalues that
    rounding made negative count as zero; callers validate definiteness beforehand. With a ``cutoff``, eigenvalues up to
    that fraction of the largest count as zero, and the root is NaN if one is below minus it.
    """
    return _psd_sqrt_parts(matrix, cutoff)[0]


def _psd_sqrt_parts(matrix, cutoff):
    values, vectors = jnp.linalg.eigh(symmetric_part(matrix))
    if cutoff is not None:
        rounding = cutoff * values[..., -1:]
        values = jnp.where(jnp.abs(values) > rounding, values, 0.0)
        values = jnp.where(values < 0, jnp.nan, values)
    roots = jnp.sqrt(jnp.maximum(values, 0.0))
    root = (vectors * roots[..., None, :]) @ transpose(vectors)
    return symmetric_part(root), roots, vectors


@psd_sqrt.defjvp
def _psd_sqrt_jvp(cutoff, primals, tangents):
    (matrix,), (tangent,) = primals, tangents
    root, roots, vectors = _psd_sqrt_parts(matrix, cutoff)
    sums = roots[..., :, None] + roots[..., None, :]
    floor = jnp.sqrt(rank_tolerance(matrix.shape[-1], matrix.dtype)) * roots[..., -1:, None]
    regular = sums > floor
    rotated = transpose(vectors) @ symmetric_part(tangent) @ vectors
    derivative = jnp.where(regular, rotated / jnp.where(regular, sums, 1.0), 0.0)
    return root, symmetric_part(vectors @ derivative @ transpose(vectors))


@jax.custom_jvp
def polar_factor(matrix: Float[Array, "*batch r r"]) -> Float[Array, "*batch r r"]:
    """The orthogonal U nearest to a square matrix K, that is K = U H with H positive semidefinite.

    The derivative U X, with H X + X H = UᵀK̇ − K̇ᵀU, is finite at repeated singular values; inside the kernel of K, where
    U is one choice of many, it is set to zero.
    """
    left, _, right = _svd_by_qr(matrix)
    return left @ right


def _svd_by_qr(matrix):
    """Singular value decomposition by QR iterations.

    Unlike divide and conquer it keeps the small singular vectors of a matrix whose rows and columns fall in size.
    """
    left, values, right = jax.lax.linalg.svd(matrix, full_matrices=False, algorithm=jax.lax.linalg.SvdAlgorithm.QR)
    return left, values, right


@polar_factor.defjvp
def _polar_factor_jvp(primals, tangents):
    (matrix,), (tangent,) = primals, tangents
    left, values, right = _svd_by_qr(matrix)
    rotated = transpose(left) @ tangent @ transpose(right)
    sums = values[..., :, None] + values[..., None, :]
    regular = (
        sums > rank_tolerance(matrix.shape[-1], matrix.dtype) * jnp.max(values, axis=-1, initial=0.0)[..., None, None]
    )
    turn = jnp.where(regular, (rotated - transpose(rotated)) / jnp.where(regular, sums, 1.0), 0.0)
    return left @ right, left @ turn @ right


@jax.custom_jvp
def pseudo_inverse(matrix: Float[Array, "m n"], rank: Num[Array, ""]) -> Float[Array, "n m"]:
    """The Moore-Penrose inverse of a matrix of known rank, an array; differentiable where the rank stays.

    The derivative is that of Golub and Pereyra (1973), finite at repeated singular values.
    """
    left, values, right = _svd_by_qr(matrix)
    kept = (jnp.arange(values.shape[0]) < rank) & (values > 0)
    return transpose(right) @ (jnp.where(kept, 1.0 / jnp.where(kept, values, 1.0), 0.0)[:, None] * transpose(left))


@pseudo_inverse.defjvp
def _pseudo_inverse_jvp(primals, tangents):
    (matrix, rank), (tangent, _) = primals, tangents
    inverse = pseudo_inverse(matrix, rank)
    lost_rows = tangent.T - (tangent.T @ matrix) @ inverse
    lost_columns = tangent.T - inverse @ (matrix @ tangent.T)
    derivative = inverse @ inverse.T @ lost_rows + lost_columns @ inverse.T @ inverse - inverse @ tangent @ inverse
    return inverse, derivative


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
