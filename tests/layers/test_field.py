"""The affine field: products of factors in any mixture of kinds, and what they cost."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gaussflow as gf
from gaussflow.layers.field import cheapest_order

D, R, H = 5, 2, 3
RNG = np.random.default_rng(0)
dense = lambda *shape: jnp.asarray(RNG.normal(size=shape))

KINDS = {"scalar": jnp.asarray(0.7), "matrix": dense(D, D), "heads": dense(H, D, D)}
MIDDLES = {
    "covariance": (dense(D, D),),
    "thin factor": (dense(D, R), dense(R, D)),
    "no columns": (dense(D, 0), dense(0, D)),
}


def as_heads(factor):
    """Any factor as numpy matrices, one a head."""
    if factor.ndim == 0:
        return [float(factor) * np.eye(D)]
    return list(np.asarray(factor)) if factor.ndim == 3 else [np.asarray(factor)]


def expected_matrix(V, middle, B):
    core = np.linalg.multi_dot([*map(np.asarray, middle), np.eye(D)]) if len(middle) > 1 else np.asarray(middle[0])
    heads_V, heads_B = as_heads(V), as_heads(B)
    pairs = zip(heads_V * len(heads_B) if len(heads_V) == 1 else heads_V,
                heads_B * len(heads_V) if len(heads_B) == 1 else heads_B, strict=True)  # fmt: skip
    return sum(v @ core @ b for v, b in pairs)


@pytest.mark.parametrize("middle", MIDDLES)
@pytest.mark.parametrize(("left", "right"), list(itertools.product(KINDS, KINDS)))
def test_chains_of_every_kind(left, right, middle):
    V, B = KINDS[left], KINDS[right]
    field = gf.AffineField(((V, *MIDDLES[middle], B),), dense(D))
    M = expected_matrix(V, MIDDLES[middle], B)
    assert np.allclose(field.matrix, M, atol=1e-13)
    for k in (1, R + 1, D):
        x = dense(D, k)
        assert np.allclose(field.apply(x), M @ np.asarray(x), atol=1e-12)
    point = dense(D)
    assert np.allclose(field.at(point), M @ point + field.offset, atol=1e-12)


def test_sums_of_chains_and_lone_factors():
    scalar, matrix = gf.AffineField(((jnp.asarray(2.0),),), dense(D)), gf.AffineField(((KINDS["heads"],),), dense(D))
    both = scalar + matrix
    M = 2 * np.eye(D) + np.asarray(KINDS["heads"]).sum(axis=0)
    assert np.allclose(both.matrix, M, atol=1e-14)
    assert np.allclose(both.offset, scalar.offset + matrix.offset, atol=1e-15)
    x = dense(D, 2)
    assert np.allclose(both.apply(x), M @ np.asarray(x), atol=1e-13)
    scalars = gf.AffineField(((jnp.asarray(2.0), jnp.asarray(3.0)),), jnp.zeros(D))
    assert np.allclose(scalars.matrix, 6 * np.eye(D))
    assert np.allclose(scalars.apply(x), 6 * np.asarray(x))


def brute_force_cost(sizes):
    if len(sizes) <= 2:
        return 0
    return min(
        brute_force_cost(sizes[: k + 1]) + brute_force_cost(sizes[k:]) + sizes[0] * sizes[k] * sizes[-1]
        for k in range(1, len(sizes) - 1)
    )


def test_order_of_multiplication_is_the_cheapest():
    for sizes in itertools.product((1, 2, 7, 64), repeat=6):
        assert cheapest_order(sizes)[0] == brute_force_cost(sizes)
    assert cheapest_order((9, 9, 9, 1))[1] == 0  # a vector: from the right
    assert cheapest_order((9, 9, 9, 9))[1] == 0


def intermediates(function, *arguments):
    """Shapes of everything a function computes, inner functions included."""
    shapes = []

    def walk(jaxpr):
        for equation in jaxpr.eqns:
            shapes.extend(v.aval.shape for v in equation.outvars)
            for value in equation.params.values():
                inner = getattr(value, "jaxpr", None)
                if inner is not None:
                    walk(inner)

    walk(jax.make_jaxpr(function)(*arguments).jaxpr)
    return shapes


@pytest.mark.parametrize("columns", [1, 8, 9, 50])
def test_apply_never_forms_a_square_matrix(columns):
    """d = 4096, rank 8, two heads: nothing of d² entries, whatever the number of columns."""
    d, r = 4096, 8
    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float64)

    def move(A, B, V, mean, factor, x):
        g = gf.Gaussian(mean, factor=factor)
        field = gf.Parameters(A=A, B=B, V=V, b=mean).affine_field(g)
        return field.apply(x), field.offset

    shapes = intermediates(move, array(d, d), array(2, d, d), array(2, d, d), array(d), array(d, r), array(d, columns))
    assert max(np.prod(shape) for shape in shapes) <= 2 * d * max(columns, r)
