"""Many problems as one: pytrees with a leading axis, for ``jax.vmap`` and batched runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from gaussflow.errors import InvalidInput
from gaussflow.gaussian import Gaussian
from gaussflow.layers.attention import SoftmaxAttention
from gaussflow.layers.feedforward import AffineFeedForward
from gaussflow.layers.parameters import Block, Parameters

Item = TypeVar("Item")


def stack(items: Sequence[Item]) -> Item:
    """One object with a leading axis from a list of Gaussians, or of layers of one kind.

    Ranks are padded with zero columns, scalars are broadcast to the matrices beside them, and missing heads are zero.
    The result is for ``jax.vmap`` and :func:`gaussflow.simulate_batch`.

    Raises :class:`gaussflow.errors.InvalidInput` for an empty list, mixed kinds, or different dimensions.
    """
    items = list(items)
    if not items:
        raise InvalidInput("items", got="an empty list", wanted="at least one item to stack")
    for item in items:
        if not isinstance(item, eqx.Module):
            raise InvalidInput("items", got=f"a list with a {type(item).__name__}", wanted="Gaussians, or layers")
    _require_one_kind(items)
    dims = {dim for item in items if (dim := getattr(item, "dim", None)) is not None}
    if len(dims) > 1:
        raise InvalidInput("items", got=f"dimensions {sorted(dims)}", wanted="one dimension for all items")
    items = _alike(items, next(iter(dims), None))
    structures = {jax.tree_util.tree_structure(item) for item in items}
    shapes = {tuple(jnp.shape(leaf) for leaf in jax.tree_util.tree_leaves(item)) for item in items}
    if len(structures) > 1 or len(shapes) > 1:
        raise InvalidInput("items", got="items with different shapes", wanted="the same shapes in every item")
    return jax.tree_util.tree_map(lambda *leaves: jnp.stack(leaves), *items)


def _require_one_kind(items: list[Any]) -> None:
    names = sorted({type(item).__name__ for item in items})
    if len(names) > 1:
        raise InvalidInput("items", got=f"a mixture of {' and '.join(names)}", wanted="items of one kind")


def _alike(items: list[Any], d: int | None) -> list[Any]:
    """The same items with arrays of equal shapes; kinds that this function does not know stay as they are."""
    kind = type(items[0])
    if kind is Gaussian:
        rank = max(g.rank for g in items)
        return [Gaussian(g.mean, factor=jnp.pad(g.factor, ((0, 0), (0, rank - g.rank)))) for g in items]
    if kind is SoftmaxAttention:
        return [SoftmaxAttention(B=B, V=V) for B, V in _same_heads(items, d)]
    if kind is AffineFeedForward:
        return [AffineFeedForward(A=A, b=b) for A, b in _same_affine(items, d)]
    if kind is Parameters:
        pairs = zip(_same_heads(items, d), _same_affine(items, d), strict=True)
        return [Parameters(A=A, B=B, V=V, b=b) for (B, V), (A, b) in pairs]
    if kind is Block:
        if len({len(block.layers) for block in items}) > 1:
            raise InvalidInput("items", got="blocks with different numbers of layers", wanted="blocks built alike")
        places = [list(layers) for layers in zip(*(block.layers for block in items), strict=True)]
        for layers in places:
            _require_one_kind(layers)
        return [Block(*layers) for layers in zip(*(_alike(layers, d) for layers in places), strict=True)]
    return items


def _same_matrices(arrays: Sequence[Array], d: int | None, *, always: bool = False) -> list[Array]:
    """Scalars as multiples of the identity where another item has a matrix; scalar in every item stays scalar."""
    if always or any(x.ndim > 0 for x in arrays):
        return [x * jnp.eye(d, dtype=x.dtype) if x.ndim == 0 else x for x in arrays]
    return list(arrays)


def _same_heads(items: Sequence[Any], d: int | None) -> list[tuple[Array, Array]]:
    """B and V of each item, with one number of heads."""
    own = [item.heads for item in items]
    columns = []
    for arrays in ([item.B for item in items], [item.V for item in items]):
        # An array shared by all heads may stay so only while the items agree on how many heads share it.
        with_heads = len(set(own)) > 1 or any(x.ndim == 3 for x in arrays)
        arrays = _same_matrices(arrays, d, always=with_heads)
        if with_heads:
            arrays = [jnp.broadcast_to(x, (heads, d, d)) for x, heads in zip(arrays, own, strict=True)]
            arrays = [jnp.pad(x, ((0, max(own) - x.shape[0]), (0, 0), (0, 0))) for x in arrays]
        columns.append(arrays)
    return list(zip(*columns, strict=True))


def _same_affine(items: Sequence[Any], d: int | None) -> list[tuple[Array, Array | None]]:
    """A and b of each item; a missing b beside given ones is zero."""
    matrices = _same_matrices([item.A for item in items], d)
    biases = [item.b for item in items]
    if any(b is not None for b in biases):
        biases = [jnp.zeros(d, A.dtype) if b is None else b for A, b in zip(matrices, biases, strict=True)]
    return list(zip(matrices, biases, strict=True))
