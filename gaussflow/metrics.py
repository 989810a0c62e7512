"""Distances between Gaussians: safe for any rank, with gradients that stay finite where distances vanish.

Everything is computed from the factors, for single Gaussians; ``jax.vmap`` does many.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gaussflow.errors import InvalidInput
from gaussflow.gaussian import Gaussian
from gaussflow.linalg import frobenius_norm, gram, polar_factor, pseudo_inverse, rank_tolerance, row_norms, transpose


def bures_wasserstein(g1: Gaussian, g2: Gaussian) -> Float[Array, ""]:
    """The 2-Wasserstein distance W₂(g1, g2), means included: a distance, not its square.

    W₂² = ‖μ₁ − μ₂‖² + min over orthogonal U of ‖L₁ − L₂U‖², the Procrustes form of the Bures distance (Bhatia, Jain,
    Lim, "On the Bures-Wasserstein distance between positive definite matrices", 2019): no square root of a covariance,
    no cancellation between nearly equal Gaussians, any ranks.

    Derivatives are finite everywhere and right wherever the distance is differentiable; at distance zero they are zero.
    It is not differentiable where one Gaussian misses a direction of the other, seen from the directions the first has
    not; the derivative is then one with the best U held fixed.

    Raises :class:`InvalidInput` if the dimensions differ.
    """
    _require_same_dimension(g1, g2)
    means = frobenius_norm(g1.mean - g2.mean)
    return frobenius_norm(jnp.stack([means, _bures(*_same_columns(g1.factor, g2.factor))]))


class TransportMap(NamedTuple):
    """The affine map x ↦ Gx + c, with G = ``matrix`` (d, d) and c = ``offset`` (d,)."""

    matrix: Float[Array, "d d"]
    offset: Float[Array, " d"]

    def __call__(self, gaussian: Gaussian) -> Gaussian:
        """The law of Gx + c for x distributed as ``gaussian``."""
        return Gaussian(self.matrix @ gaussian.mean + self.offset, factor=self.matrix @ gaussian.factor)


def transport_map(source: Gaussian, target: Gaussian) -> TransportMap:
    """The optimal transport map x ↦ Gx + c from ``source`` to ``target`` (quadratic cost).

    For a source of full rank G is the symmetric positive semidefinite matrix Σ₀^{-½}(Σ₀^½Σ₁Σ₀^½)^½Σ₀^{-½}. In general
    G = L₁ U L₀⁺ with U the polar factor of L₁ᵀL₀: it carries the source onto the target at least cost whenever the
    target's rank is not larger, is the only such map on the support where L₁ᵀL₀ has the target's rank, and is symmetric
    where the target's range lies in the source's. Off the support of the source, where no mass is, its linear part is
    zero. If the target has larger rank no map exists; G is then the barycentric projection x ↦ E[y | x] of an optimal
    plan.

    Raises :class:`InvalidInput` if the dimensions differ.
    """
    _require_same_dimension(source, target)
    one, two = _same_columns(source.factor, target.factor)
    if one.shape[1] == 0:
        matrix = jnp.zeros((source.dim, source.dim), one.dtype)
    else:
        size, (_, idle) = _size(one), _graded(one)
        matrix = two @ _alignment(one, two) @ (pseudo_inverse(one / size, jnp.sum(~idle)) / size)
    return TransportMap(matrix, target.mean - matrix @ source.mean)


def kl_divergence(g1: Gaussian, g2: Gaussian) -> Float[Array, ""]:
    """KL(g1 ‖ g2), in nats; infinite unless both have the same supporting affine subspace.

    For singular Gaussians of equal support the densities are those on that subspace. Ranks are numerical, so that zero
    columns of a factor do not count, and do not depend on the units of the coordinates; supports are compared to a
    relative √eps, 1.5e-8 in double precision. First and second derivatives are finite and right wherever the divergence
    is finite, and zero where it is infinite.

    Raises :class:`InvalidInput` if the dimensions differ.
    """
    _require_same_dimension(g1, g2)
    # In units of g2's standard deviations; a coordinate in which g2 does not vary is measured by the spread of g1.
    deviations = row_norms(jax.lax.stop_gradient(g2.factor))
    units = jnp.where(deviations > 0, deviations, _size(g1.factor))[:, None]
    one, two, shift = g1.factor / units, g2.factor / units, (g1.mean - g2.mean)[:, None] / units
    basis, rank = _range(two)
    whitener = _whitener(basis, rank, two)
    whiten = lambda x: jax.scipy.linalg.solve_triangular(whitener, transpose(basis) @ x, trans=1)
    K, y = whiten(one), whiten(shift)  # KKᵀ is Σ₁ in coordinates in which Σ₂ is the identity on its range

    tolerance = jnp.sqrt(jnp.finfo(one.dtype).eps)
    outside = lambda x: jnp.abs(x - basis @ (transpose(basis) @ x))
    spread_one, spread_two = (jnp.max(jnp.abs(x), initial=0.0) for x in (one, two))
    rounding = 8 * jnp.finfo(one.dtype).eps * (jnp.abs(g1.mean) + jnp.abs(g2.mean))[:, None] / units
    inside = jnp.all(outside(one) <= tolerance * spread_one)
    inside &= jnp.all(outside(shift) <= tolerance * (spread_one + spread_two) + rounding)
    inside &= _range(K)[1] == rank
    same_support = (_range(_equilibrated(g1.factor))[1] == rank) & (inside | (rank == g2.dim))
    value = _spectral_part(K, rank.astype(one.dtype)) + 0.5 * jnp.sum(y**2)
    return jnp.where(same_support, value, jnp.inf)


def relative_covariance_error(computed: Gaussian, reference: Gaussian) -> Float[Array, ""]:
    """‖Σ − Σ_ref‖_F / ‖Σ_ref‖_F; the absolute error if the reference is a point."""
    _require_same_dimension(computed, reference)
    size = _size(reference.factor)
    expected = gram(reference.factor / size)
    norm = frobenius_norm(expected)
    return frobenius_norm(gram(computed.factor / size) - expected) / jnp.where(norm > 0, norm, 1.0)


def relative_mean_error(computed: Gaussian, reference: Gaussian) -> Float[Array, ""]:
    """‖μ − μ_ref‖ over √(‖μ_ref‖² + tr Σ_ref), the natural size of a token; absolute if that is zero."""
    _require_same_dimension(computed, reference)
    size = frobenius_norm(jnp.concatenate([reference.factor, reference.mean[:, None]], axis=1))
    return frobenius_norm(computed.mean - reference.mean) / jnp.where(size > 0, size, 1.0)


def _require_same_dimension(g1: Gaussian, g2: Gaussian) -> None:
    if g1.dim != g2.dim:
        raise InvalidInput("g2", got=f"dimension {g2.dim} beside {g1.dim}", wanted="two Gaussians of one dimension")


def _same_columns(one: Array, two: Array) -> tuple[Array, Array]:
    columns = max(one.shape[1], two.shape[1])
    return tuple(jnp.pad(x, ((0, 0), (0, columns - x.shape[1]))) for x in (one, two))  # type: ignore[return-value]


def _size(factor: Array) -> Array:
    """The largest entry in size, held fixed; 1 for zero. Products of factors divided by it do not underflow."""
    largest = jnp.max(jnp.abs(jax.lax.stop_gradient(factor)), initial=0.0)
    return jnp.where(largest > 0, largest, 1.0)


@jax.custom_jvp
def _bures(one: Float[Array, "d r"], two: Float[Array, "d r"]) -> Float[Array, ""]:
    """min over orthogonal U of ‖L₁ − L₂U‖, zero where it is within rounding of it."""
    return _bures_parts(one, two)[0]


def _bures_parts(one: Array, two: Array) -> tuple[Array, Array, Array]:
    if one.shape[1] == 0:
        return jnp.zeros((), one.dtype), one, jnp.zeros((0, 0), one.dtype)
    U = _alignment(one, two)
    difference = one - two @ U
    distance = frobenius_norm(difference)
    # What rounding leaves between a Gaussian and itself has a direction, hence a gradient, without meaning.
    size = jax.lax.stop_gradient(frobenius_norm(one) + frobenius_norm(two))
    return jnp.where(distance <= rank_tolerance(one.shape[1], one.dtype) * size, 0.0, distance), difference, U


@_bures.defjvp
def _bures_jvp(primals, tangents):
    # Envelope theorem: a first derivative may hold the best U fixed, which keeps the rounding of U out of it; only the
    # second derivative differentiates U.
    distance, difference, U = _bures_parts(*primals)
    direction = jnp.where(distance > 0, difference / jnp.where(distance > 0, distance, 1.0), 0.0)
    return distance, jnp.sum(direction * (tangents[0] - tangents[1] @ U))


def _alignment(one: Float[Array, "d r"], two: Float[Array, "d r"]) -> Float[Array, "r r"]:
    """The orthogonal U for which L₂U is nearest to L₁: the polar factor of L₂ᵀL₁.

    Both factors are first turned so that their columns are orthogonal and fall in size: small directions then keep
    their digits in the product, and columns that are zero in both are matched with each other.
    """
    (turn_one, idle_one), (turn_two, idle_two) = _graded(one), _graded(two)
    product = transpose(two / _size(two) @ turn_two) @ (one / _size(one) @ turn_one)
    U = polar_factor(product + jnp.diag((idle_one & idle_two).astype(product.dtype)))
    return turn_two @ U @ transpose(turn_one)


def _graded(factor: Array) -> tuple[Array, Array]:
    """The right singular vectors of a factor, (r, r), and which of them it maps to zero; held fixed."""
    triangle = jnp.linalg.qr(jax.lax.stop_gradient(factor), mode="r")
    _, values, right = jnp.linalg.svd(triangle, full_matrices=True)
    values = jnp.pad(values, (0, factor.shape[1] - values.shape[0]))
    return transpose(right), values <= rank_tolerance(max(factor.shape), factor.dtype) * values[0]


@jax.custom_jvp
def _spectral_part(K: Float[Array, "k r"], rank: Float[Array, ""]) -> Float[Array, ""]:
    """½ Σ (s² − 1 − ln s²) over the ``rank`` largest singular values s of K."""
    if not K.size:
        return jnp.zeros((), K.dtype)
    s = jnp.linalg.svd(K, compute_uv=False)
    s = jnp.where((jnp.arange(s.shape[0]) < rank) & (s > 0), s, 1.0)
    return 0.5 * jnp.sum((s - 1) * (s + 1) - 2 * jnp.log(s))


@_spectral_part.defjvp
def _spectral_part_jvp(primals, tangents):
    # By the pseudo-inverse, so that the second derivative exists at repeated singular values: at equal Gaussians, where
    # it is the Fisher information, all of them are one.
    K, rank = primals
    return _spectral_part(K, rank), jnp.sum((K - transpose(pseudo_inverse(K, rank))) * tangents[0])


def _equilibrated(factor: Array) -> Array:
    deviations = row_norms(jax.lax.stop_gradient(factor))
    return factor / jnp.where(deviations > 0, deviations, 1.0)[:, None]


def _range(factor: Array) -> tuple[Array, Array]:
    """An orthonormal basis of the range of a factor, (d, min(d, r)), its columns beyond the rank zero, and the rank."""
    if 0 in factor.shape:
        return factor[:, :0], jnp.zeros((), int)
    left, values, _ = jnp.linalg.svd(jax.lax.stop_gradient(factor), full_matrices=False)
    kept = values > rank_tolerance(max(factor.shape), factor.dtype) * values[0]
    return left * kept, jnp.sum(kept)


def _whitener(basis: Array, rank: Array, factor: Array) -> Array:
    """Triangular R with RᵀR = Σ in a basis of its range, and the unit matrix beyond the rank."""
    idle = jnp.arange(basis.shape[1]) >= rank
    rows = jnp.concatenate([transpose(factor) @ basis, jnp.diag(idle.astype(factor.dtype))])
    return jnp.linalg.qr(rows, mode="r")
