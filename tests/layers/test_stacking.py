"""Stacking: every item acts the same before and after."""

import jax
import numpy as np
import pytest

import gaussflow as gf

D = 2
RNG = np.random.default_rng(0)
A, B, V = RNG.normal(size=(3, D, D))
HEADS_B, HEADS_V, THREE = RNG.normal(size=(2, D, D)), RNG.normal(size=(2, D, D)), RNG.normal(size=(3, D, D))
G = gf.Gaussian([1.0, -2.0], [[2.0, 0.5], [0.5, 1.0]])

MIXTURES = {
    "scalars beside matrices": [{"A": 1.0, "V": V}, {"A": A, "B": 2.0, "V": -1.0}],
    "scalars in every item": [{"V": 1.0, "b": [1, 2]}, {"V": 2.0, "B": 3.0}],
    "bias in one": [{"A": A}, {"A": A, "b": [3.0, 4.0]}],
    "dimension in one only": [{"A": 1.0}, {"A": A}],
    "one head beside two": [{"B": B, "V": V}, {"B": HEADS_B, "V": HEADS_V}],
    "two heads beside three": [{"B": HEADS_B, "V": HEADS_V}, {"B": THREE, "V": THREE}],
    "shared V": [{"B": HEADS_B, "V": V}, {"B": -HEADS_B, "V": A}],
    "shared V beside one's own": [{"B": HEADS_B, "V": V}, {"B": HEADS_B, "V": HEADS_V}],
    "shared V, other number of heads": [{"B": HEADS_B, "V": V}, {"B": THREE, "V": A}, {"B": B, "V": B}],
    "shared B": [{"B": B, "V": HEADS_V}, {"B": 2.0, "V": HEADS_V}],
    "scalar V, many heads": [{"B": HEADS_B, "V": -1.0}, {"B": HEADS_B, "V": 2.0}],
    "scalar V, other number of heads": [{"B": HEADS_B, "V": -1.0}, {"B": THREE, "V": 2.0}, {"B": B, "V": 1.0}],
    "scalar B, many V": [{"B": 1.0, "V": HEADS_V}, {"B": -2.0, "V": THREE}],
    "no attention beside heads": [{"A": A}, {"B": HEADS_B, "V": HEADS_V}],
}


def assert_same_fields(items, stacked):
    fields = jax.vmap(lambda layer: (layer.affine_field(G).matrix, layer.affine_field(G).offset))(stacked)
    for item, matrix, offset in zip(items, *fields, strict=True):
        assert np.allclose(item.affine_field(G).matrix, matrix, atol=1e-13)
        assert np.allclose(item.affine_field(G).offset, offset, atol=1e-13)


@pytest.mark.parametrize("name", MIXTURES)
def test_parameters_act_the_same_after_stacking(name):
    items = [gf.Parameters(**given) for given in MIXTURES[name]]
    stacked = gf.stack(items)
    assert isinstance(stacked, gf.Parameters)
    assert_same_fields(items, stacked)
    assert_same_fields(items, jax.jit(gf.stack)(items))


def test_scalar_values_stay_scalar_where_they_can():
    stacked = gf.stack([gf.Parameters(**given) for given in MIXTURES["scalar V, many heads"]])
    assert stacked.V.shape == (2,)
    assert stacked.B.shape == (2, 2, D, D)


def test_other_layers():
    attentions = [gf.SoftmaxAttention(B=B, V=1.0), gf.SoftmaxAttention(B=HEADS_B, V=HEADS_V)]
    assert_same_fields(attentions, gf.stack(attentions))
    feedforwards = [gf.AffineFeedForward(A=2.0), gf.AffineFeedForward(A=A, b=[1, 2])]
    assert_same_fields(feedforwards, gf.stack(feedforwards))
    blocks = [gf.Block(a, f) for a, f in zip(attentions, feedforwards, strict=True)]
    assert_same_fields(blocks, gf.stack(blocks))


def test_gaussians_of_mixed_rank():
    items = [gf.Gaussian([1.0, 2.0], factor=RNG.normal(size=(2, rank))) for rank in (0, 1, 3)]
    stacked = gf.stack(items)
    assert stacked.factor.shape == (3, 2, 3)
    for item, mean, covariance in zip(items, stacked.mean, stacked.covariance, strict=True):
        assert np.array_equal(item.mean, mean)
        assert np.allclose(item.covariance, covariance, atol=1e-15)


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([], "items: got an empty list; wanted at least one item to stack"),
        ([G, gf.Parameters(A=A)], "items: got a mixture of Gaussian and Parameters; wanted items of one kind"),
        ([G, gf.Gaussian([0.0], [[1.0]])], "items: got dimensions [1, 2]; wanted one dimension for all items"),
        ([gf.Parameters(A=A), gf.Parameters(A=np.eye(3))], "items: got dimensions [2, 3]"),
        ([np.eye(2)], "items: got a list with a ndarray; wanted Gaussians, or layers"),
        (
            [gf.Block(gf.Parameters(A=A)), gf.Block(gf.AffineFeedForward(A=A))],
            "items: got a mixture of AffineFeedForward and Parameters",
        ),
        (
            [gf.Block(gf.Parameters(A=A)), gf.Block(gf.Parameters(A=A), gf.Parameters(A=A))],
            "items: got blocks with different numbers of layers",
        ),
    ],
)
def test_refusals(items, text):
    with pytest.raises(gf.InvalidInput) as refusal:
        gf.stack(items)
    assert str(refusal.value).startswith(text)
