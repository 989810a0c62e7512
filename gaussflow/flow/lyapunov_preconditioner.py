"""Collocation systems with a Lyapunov operator in place of the Jacobian, solved directly in O(d³).

With L(H) = NH + HNᵀ and N = XΛX⁻¹ the system Z - h (A ⊗ L) Z = R falls apart twice: the eigenvectors of the
Runge–Kutta matrix A separate the stages, and X separates the entries, each a division by 1 - h μ_k (λ_i + λ_j). The
d²×d² matrix of L never exists. Complex matrices are carried as (real part, imaginary part): real products are twice as
fast on a CPU.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gaussflow.flow.collocation import Collocation
from gaussflow.linalg import symmetric_part, transpose

Complex = tuple[Array, Array]
"""Real and imaginary part."""

WORST_CONDITION = 1e6
"""Size of X⁻¹ (for unit eigenvectors) from which N counts as defective."""
PERTURBATION = 1e-8
"""Relative size of the change that makes a defective N diagonalisable; it costs a Krylov iteration, never accuracy."""
SMALLEST_PIVOT = 0.05
"""Where 1 - hμ(λ_i + λ_j) almost vanishes, on growing modes, a preconditioner must not divide by it."""


class Spectral(NamedTuple):
    """N = XΛX⁻¹."""

    values: Complex
    vectors: Complex
    inverse: Complex


class _Attempt(NamedTuple):
    number: Array
    values: Array
    vectors: Array
    inverse: Array


def diagonalise(matrix: Float[Array, "d d"]) -> Spectral:
    """The eigendecomposition of a real matrix; of a nearby one where the matrix itself has no basis of eigenvectors."""
    d = matrix.shape[0]
    noise = np.random.default_rng(0).standard_normal((d, d)) / np.sqrt(d)
    # NaN or infinite entries must not reach LAPACK; the trial step fails on its own account.
    finite = jnp.all(jnp.isfinite(matrix))
    N = jnp.where(finite, matrix, jnp.eye(d, dtype=matrix.dtype))
    change = PERTURBATION * jnp.max(jnp.abs(N), initial=0.0) * noise

    def decompose(attempt: _Attempt) -> _Attempt:
        values, vectors = jnp.linalg.eig(N + attempt.number * change)
        return _Attempt(attempt.number + 1, values, vectors, jnp.linalg.inv(vectors))

    def unsound(attempt: _Attempt) -> Array:
        size = jnp.max(jnp.abs(attempt.inverse), initial=0.0)
        return (attempt.number == 0) | (attempt.number == 1) & ~(size < WORST_CONDITION)

    nothing = jnp.zeros((d, d), jnp.result_type(N.dtype, jnp.complex64))
    start = _Attempt(jnp.zeros((), int), nothing[0], nothing, nothing)
    found = jax.lax.while_loop(unsound, decompose, start)
    return Spectral(*((part.real, part.imag) for part in found[1:]))


def solve_stages(
    collocation: Collocation,
    spectral: Spectral,
    h: Array,
    right: Float[Array, "s d d"],
    *,
    transposed: bool = False,
) -> Float[Array, "s d d"]:
    """The symmetric Z with Z - h (A ⊗ L) Z = R, for symmetric R; or the same for the transposed operator."""
    into, back = collocation.to_modes, collocation.from_modes
    if transposed:
        into, back = back.T, into.T
        spectral = _transposed(spectral)
    modes = _mix(into.real, right), _mix(into.imag, right)
    modes = _solve_modes(spectral, h * collocation.shifts.real, h * collocation.shifts.imag, modes)
    return symmetric_part(_mix(back.real, modes[0]) - _mix(back.imag, modes[1]))


def solve_shifted(
    spectral: Spectral, shift: Array, right: Float[Array, "d d"], *, transposed: bool = False
) -> Float[Array, "d d"]:
    """The symmetric H with H - shift L(H) = R, for symmetric R."""
    spectral = _transposed(spectral) if transposed else spectral
    zero = jnp.zeros_like(right)[None]
    return symmetric_part(_solve_modes(spectral, shift[None], jnp.zeros_like(shift)[None], (right[None], zero))[0][0])


def _transposed(spectral: Spectral) -> Spectral:
    flip = lambda x: (transpose(x[0]), transpose(x[1]))
    return Spectral(spectral.values, flip(spectral.inverse), flip(spectral.vectors))


def _mix(matrix: np.ndarray, stages: Array) -> Array:
    return jnp.tensordot(jnp.asarray(matrix, stages.dtype), stages, axes=1)


def _solve_modes(spectral: Spectral, real_shift: Array, imaginary_shift: Array, right: Complex) -> Complex:
    rotated = _congruence(spectral.inverse, right)
    sums = [x[:, None] + x[None, :] for x in spectral.values]
    a, b = real_shift[:, None, None], imaginary_shift[:, None, None]
    real, imaginary = 1.0 - (a * sums[0] - b * sums[1]), -(a * sums[1] + b * sums[0])
    square = real**2 + imaginary**2
    small = square < SMALLEST_PIVOT**2
    real = jnp.where(small, SMALLEST_PIVOT, real)
    imaginary = jnp.where(small, 0.0, imaginary)
    square = jnp.where(small, SMALLEST_PIVOT**2, square)
    quotient = (
        (rotated[0] * real + rotated[1] * imaginary) / square,
        (rotated[1] * real - rotated[0] * imaginary) / square,
    )
    return _congruence(spectral.vectors, quotient)


def _congruence(factor: Complex, middle: Complex) -> Complex:
    """P C Pᵀ (no conjugate), batched over C."""
    (pr, pi), (cr, ci) = factor, middle
    lr, li = pr @ cr - pi @ ci, pr @ ci + pi @ cr
    return lr @ pr.T - li @ pi.T, lr @ pi.T + li @ pr.T
