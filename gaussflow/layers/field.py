"""The one idea: a mean-field layer acts on a Gaussian as an affine field x ↦ Mx + c.

Whatever can state its affine field for a given Gaussian can be integrated, steered, linearised, swept and compiled.
"""

from __future__ import annotations

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from gaussflow.gaussian import Gaussian, Moments
from gaussflow.linalg import transpose

State = Gaussian | Moments
"""What a layer may be asked about: anything with ``mean``, ``dim``, ``covariance``, ``factor`` and ``covariance_chain``."""

Chain = tuple[Array, ...]
"""A product of matrices, left to right. A scalar is that multiple of the identity; a leading axis (of heads) is summed."""


class AffineField(eqx.Module):
    """The field x ↦ Mx + c, with M kept as a sum of chains of factors.

    ``apply`` costs O(d²k) for k columns whatever the chains; the (d, d) matrix exists only when asked for.
    """

    chains: tuple[Chain, ...]
    offset: Float[Array, "*batch d"]

    def apply(self, x: Float[Array, "d k"]) -> Float[Array, "d k"]:
        """M x, for the k columns of x, shape (d, k)."""
        total = jnp.zeros_like(x)
        for chain in self.chains:
            total = total + _sum_heads(_product((*chain, x)))
        return total

    @property
    def matrix(self) -> Float[Array, "d d"]:
        """M, shape (d, d)."""
        d = self.offset.shape[-1]
        total = jnp.zeros((d, d), self.offset.dtype)
        for chain in self.chains:
            product = _sum_heads(_product(chain))
            total = total + (product * jnp.eye(d, dtype=product.dtype) if product.ndim == 0 else product)
        return total

    def at(self, point: Float[Array, " d"]) -> Float[Array, " d"]:
        """M x + c at one point x, shape (d,)."""
        return self.apply(point[:, None])[:, 0] + self.offset

    def __add__(self, other: AffineField) -> AffineField:
        return AffineField(self.chains + other.chains, self.offset + other.offset)


def _product(chain: Chain) -> Array:
    """The product of a chain, scalars last."""
    matrices = [factor for factor in chain if factor.ndim > 0]
    scalars = [factor for factor in chain if factor.ndim == 0]
    product = _matrix_product(matrices) if matrices else scalars.pop()
    for scalar in scalars:
        product = scalar * product
    return product


def _matrix_product(matrices: list[Array]) -> Array:
    """The product of one or more matrices, split at the narrowest dimension, so that thin factors meet first.

    Ties go to the right end: a chain applied to thin x runs from the right.
    """
    if len(matrices) == 1:
        return matrices[0]
    inner = [left.shape[-1] for left in matrices[:-1]]
    if matrices[-1].shape[-1] <= min(inner):
        split = 1
    else:
        split = len(inner) - inner[::-1].index(min(inner))
    return _matrix_product(matrices[:split]) @ _matrix_product(matrices[split:])


def _sum_heads(product: Array) -> Array:
    return jnp.sum(product, axis=0) if product.ndim == 3 else product


class MeanFieldLayer(eqx.Module):
    """A layer of a mean-field Transformer, in continuous depth.

    A new kernel or activation is one subclass with ``affine_field`` and ``velocity``; integrators, certificates and
    controls need nothing else. Two declarations steer the blow-up machinery:

    ``growth``
        how M grows with Σ: ``"bounded"`` (no finite-time blow-up by itself) or ``"linear"``, M(ρΣ) = ρ M(Σ) exactly
        (and, unless ``autonomous``, M(ρΣ, √ρ μ) = ρ M(Σ, μ)).
    ``autonomous``
        True if M does not depend on the mean, so that the covariance flows by itself.
    """

    @property
    @abc.abstractmethod
    def dim(self) -> int | None:
        """d, or None if only scalars were given and nothing fixes the dimension."""

    @property
    def growth(self) -> str:
        return "bounded"

    @property
    def autonomous(self) -> bool:
        return True

    @property
    def parts(self) -> tuple[MeanFieldLayer, ...]:
        """The elementary layers whose fields add up to this one, each with its own ``growth``."""
        return (self,)

    @abc.abstractmethod
    def affine_field(self, gaussian: State) -> AffineField:
        """The field x ↦ Mx + c by which the layer moves every token of ``gaussian``."""

    @abc.abstractmethod
    def velocity(self, x: Float[Array, "n d"], tokens: Float[Array, "m d"]) -> Float[Array, "n d"]:
        """The velocity of the tokens x among the finite cloud ``tokens``, each a row."""

    def lyapunov_matrix(self, gaussian: State) -> Float[Array, "d d"]:
        """A matrix N whose operator H ↦ NH + HNᵀ resembles the derivative of the covariance flow at Σ.

        Only the speed of the implicit solver depends on it. Kernels whose M depends on Σ can do better than M.
        """
        return self.affine_field(gaussian).matrix

    def covariance_rate(self, gaussian: State) -> Float[Array, "d d"]:
        """Σ' = MΣ + ΣMᵀ, exactly symmetric, for a state with a dense covariance."""
        flow = self.affine_field(gaussian).matrix @ gaussian.covariance
        return flow + transpose(flow)
