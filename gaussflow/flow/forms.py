"""Two forms of the flow in physical time, each a state in one array so that a stage is one matrix product.

The covariance form carries [Σ | μ], the factor form [L | μ]. Both move by the same affine field: M acts on all columns.
"""

from __future__ import annotations

import abc
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from gaussflow.gaussian import Gaussian, Moments
from gaussflow.layers.field import MeanFieldLayer
from gaussflow.linalg import transpose


class Form(abc.ABC):
    """How a Gaussian is laid out in an array, its rate of change, and how errors are weighed."""

    name: str

    @abc.abstractmethod
    def pack(self, mean: Array, factor: Array) -> Array: ...

    @abc.abstractmethod
    def rate(self, layer: MeanFieldLayer, state: Array) -> Array: ...

    @abc.abstractmethod
    def variances(self, state: Array) -> Array:
        """The diagonal of Σ, shape (d,)."""

    @abc.abstractmethod
    def weights(self, before: Array, after: Array, rtol: Array, atol: Array) -> Array:
        """Error weights, one an entry.

        Errors are measured in units of the standard deviations of the coordinates at hand, so that the control does not
        depend on the units a coordinate is measured in; ``atol`` is relative to the largest of them.
        """

    def split(self, state: Array) -> tuple[Array, Array]:
        """Mean and the covariance or factor, from a state or a stack of them."""
        return state[..., -1], state[..., :-1]

    def _deviations(self, before: Array, after: Array) -> tuple[Array, Array]:
        variances = jnp.maximum(jnp.abs(self.variances(before)), jnp.abs(self.variances(after)))
        means = jnp.maximum(jnp.abs(before[:, -1]), jnp.abs(after[:, -1]))
        return jnp.sqrt(variances), means


class CovarianceForm(Form):
    """Σ' = X + Xᵀ with X = MΣ, exactly symmetric by construction."""

    name = "covariance"

    def pack(self, mean, factor):
        return jnp.concatenate([Gaussian(mean, factor=factor).covariance, mean[:, None]], axis=1)

    def rate(self, layer, state):
        mean, covariance = state[:, -1], state[:, :-1]
        field = layer.affine_field(Moments(mean, covariance))
        flow = field.matrix @ state
        half = flow[:, :-1]
        return jnp.concatenate([half + transpose(half), (flow[:, -1] + field.offset)[:, None]], axis=1)

    def variances(self, state):
        return jnp.diagonal(state)

    def weights(self, before, after, rtol, atol):
        deviations, means = self._deviations(before, after)
        largest = jnp.max(deviations, initial=0.0)
        covariance = rtol * deviations[:, None] * deviations[None, :] + atol * largest**2
        mean = rtol * (means + deviations) + atol * (largest + jnp.max(means, initial=0.0))
        return jnp.concatenate([covariance, mean[:, None]], axis=1)


class FactorForm(Form):
    """L' = ML: rank and positive semidefiniteness by construction, O(d²r) a step and no (d, d) covariance."""

    name = "factor"

    def pack(self, mean, factor):
        return jnp.concatenate([factor, mean[:, None]], axis=1)

    def rate(self, layer, state):
        field = layer.affine_field(Gaussian(state[:, -1], factor=state[:, :-1]))
        return field.apply(state).at[:, -1].add(field.offset)

    def variances(self, state):
        return jnp.sum(state[:, :-1] ** 2, axis=1)

    def weights(self, before, after, rtol, atol):
        deviations, means = self._deviations(before, after)
        largest = jnp.max(deviations, initial=0.0)
        factor = jnp.broadcast_to((rtol * deviations + atol * largest)[:, None], before[:, :-1].shape)
        mean = rtol * (means + deviations) + atol * (largest + jnp.max(means, initial=0.0))
        return jnp.concatenate([factor, mean[:, None]], axis=1)


FORMS: dict[str, Form] = {"covariance": CovarianceForm(), "factor": FactorForm()}


def unpack(form: Form, state: Any) -> Gaussian | Moments:
    """The Gaussian of one state, in the representation the form carries."""
    mean, rest = form.split(state)
    return Moments(mean, rest) if form.name == "covariance" else Gaussian(mean, factor=rest)
