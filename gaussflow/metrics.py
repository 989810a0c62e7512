"""Distances between Gaussians: safe for any rank, with gradients that stay finite where distances vanish."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gaussflow.errors import InvalidInput
from gaussflow.gaussian import Gaussian
from gaussflow.layers.field import AffineField
from gaussflow.linalg import frobenius_norm, rank_tolerance, symmetric_part, transpose


def bures_wasserstein(g1: Gaussian, g2: Gaussian) -> Float[Array, ""]:
    """The 2-Wasserstein distance W₂(g1, g2): a distance, not its square.

    From the factors, as ‖μ₁ − μ₂‖² + min over orthogonal U of ‖L₁ − L₂U‖² (the Procrustes form of the Bures distance):
    no square root of a covariance, no cancellation between nearly equal Gaussians, any ranks. First derivatives are
    exact, since the best U may be held fixed (envelope theorem); second derivatives are not available this way. At
    distance zero, and within rounding of it, distance and gradient are zero.

    Raises :class:`InvalidInput` if the dimensions differ.
    """
    _same_dimension(g1, g2)
    columns = max(g1.rank, g2.rank)
    pad = lambda g: jnp.pad(g.factor, ((0, 0), (0, columns - g.rank)))
    one, two = pad(g1), pad(g2)
    left, _, right = jnp.linalg.svd(jax.lax.stop_gradient(transpose(two) @ one), full_matrices=False)
    difference = jnp.concatenate([one - two @ (left @ right), (g1.mean - g2.mean)[:, None]], axis=1)
    distance = frobenius_norm(difference)
    # What rounding leaves between a Gaussian and itself has a direction, and so a gradient, without meaning.
    size = frobenius_norm(one) + frobenius_norm(two)
    rounding = rank_tolerance(max(one.shape), one.dtype) * jax.lax.stop_gradient(size)
    return jnp.where(distance <= rounding, 0.0, distance)


def transport_map(source: Gaussian, target: Gaussian) -> AffineField:
    """The optimal transport map x ↦ Gx + c from ``source`` to ``target``, as an affine field.

    G is symmetric positive semidefinite with GΣ₀G = Σ₁ where such a map exists, which needs rank Σ₁ ≤ rank Σ₀ seen from
    the range of Σ₀: the part of the target that the source cannot reach (tr of the residual) is the caller's to check,
    as ``pushforward(map, source)`` against the target. Off the range of Σ₀ G is zero, since no mass is there.

    Raises :class:`InvalidInput` if the dimensions differ.
    """
    _same_dimension(source, target)
    L, R = source.factor, target.factor
    # In coordinates of the source, G = L⁻ᵀ (LᵀΣ₁L)^½ L⁻¹ on the range of Σ₀; LᵀΣ₁L = KKᵀ with K = LᵀR.
    left, values, _ = jnp.linalg.svd(transpose(L) @ R, full_matrices=False)
    inverse = _pseudo_inverse(L)
    half = transpose(inverse) @ (left * jnp.sqrt(values))
    matrix = symmetric_part(half @ transpose(half))
    return AffineField(((matrix,),), target.mean - matrix @ source.mean)


def pushforward(field: AffineField, gaussian: Gaussian) -> Gaussian:
    """The law of Mx + c for x distributed as ``gaussian``."""
    return Gaussian(field.at(gaussian.mean), factor=field.apply(gaussian.factor))


def kl_divergence(g1: Gaussian, g2: Gaussian) -> Float[Array, ""]:
    """KL(g1 ‖ g2), in nats; infinite unless g1 and g2 have the same supporting affine subspace.

    For singular Gaussians the densities are taken on that common subspace. Zero columns of a factor do not count.

    Raises :class:`InvalidInput` if the dimensions differ.
    """
    _same_dimension(g1, g2)
    # Units of single coordinates do not matter; without a common scale small variances would count as zero.
    scale = jax.lax.stop_gradient(jnp.sqrt(jnp.sum(g2.factor**2, axis=1)))
    scale = jnp.where(scale > 0, scale, 1.0)[:, None]
    one, two = g1.factor / scale, g2.factor / scale
    shift = (g1.mean - g2.mean)[:, None] / scale
    if one.shape[1] == 0 and two.shape[1] == 0:
        return jnp.where(jnp.any(shift != 0), jnp.inf, 0.0)
    basis, inverse, rank_two = _range(two)
    _, _, rank_one = _range(one)
    inside = lambda x: basis @ (transpose(basis) @ x)
    tolerance = jnp.sqrt(jnp.finfo(one.dtype).eps)
    size = jnp.maximum(jnp.max(jnp.abs(jax.lax.stop_gradient(one)), initial=0.0), 1.0)
    leaves = lambda x: jnp.max(jnp.abs(jax.lax.stop_gradient(x - inside(x))), initial=0.0) > tolerance * size
    same_support = (rank_one == rank_two) & ~leaves(one) & ~leaves(shift)
    # KKᵀ is Σ₁ in the coordinates in which Σ₂ is the identity on its range.
    K, y = inverse @ one, inverse @ shift
    spectrum = _singular_values_squared(K)
    positive = jax.lax.stop_gradient(spectrum) > rank_tolerance(max(one.shape), one.dtype) ** 2
    counted = jnp.where(positive, spectrum, 1.0)
    value = 0.5 * (jnp.sum(jnp.where(positive, counted - 1 - jnp.log(counted), 0.0)) + jnp.sum(y**2))
    return jnp.where(same_support, value, jnp.inf)


def relative_covariance_error(computed: Gaussian, reference: Gaussian) -> Float[Array, ""]:
    """‖Σ − Σ_ref‖_F / ‖Σ_ref‖_F; the absolute error if the reference is a point."""
    _same_dimension(computed, reference)
    size = frobenius_norm(reference.covariance)
    return frobenius_norm(computed.covariance - reference.covariance) / jnp.where(size > 0, size, 1.0)


def relative_mean_error(computed: Gaussian, reference: Gaussian) -> Float[Array, ""]:
    """‖μ − μ_ref‖ over √(‖μ_ref‖² + tr Σ_ref), the natural size of a token; absolute if that is zero."""
    _same_dimension(computed, reference)
    size = frobenius_norm(jnp.concatenate([reference.factor, reference.mean[:, None]], axis=1))
    return frobenius_norm(computed.mean - reference.mean) / jnp.where(size > 0, size, 1.0)


def _range(factor: Array) -> tuple[Array, Array, Array]:
    """A basis of the range (columns beyond the rank zeroed), a left inverse of the factor's polar form, and the rank."""
    left, values, _ = jnp.linalg.svd(jax.lax.stop_gradient(factor), full_matrices=False)
    kept = values > rank_tolerance(max(factor.shape), factor.dtype) * jnp.max(values, initial=0.0)
    basis = left * kept
    return basis, _whitening(factor, basis, kept), jnp.sum(kept)


def _whitening(factor: Array, basis: Array, kept: Array) -> Array:
    """X with X Σ Xᵀ = I on the range, differentiable: the inverse Cholesky factor of Σ in the basis of its range."""
    reduced = transpose(basis) @ factor
    # Unit variance in the directions that are not there keeps the Cholesky factor finite and contributes nothing.
    R = jnp.linalg.cholesky(symmetric_part(reduced @ transpose(reduced)) + jnp.diag((~kept).astype(factor.dtype)))
    return jax.scipy.linalg.solve_triangular(R, transpose(basis), lower=True)


def _singular_values_squared(K: Array) -> Array:
    return jnp.linalg.svd(K, compute_uv=False) ** 2


def _pseudo_inverse(L: Array) -> Array:
    return jnp.linalg.pinv(L, rtol=rank_tolerance(max(L.shape), L.dtype)) if L.size else transpose(L)


def _same_dimension(g1: Gaussian, g2: Gaussian) -> None:
    if g1.dim != g2.dim:
        raise InvalidInput("g2", got=f"dimension {g2.dim} beside {g1.dim}", wanted="two Gaussians of one dimension")
