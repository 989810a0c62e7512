"""Parameters, feed-forward and blocks: what they accept, and how fields add up."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gaussflow as gf

D = 2
M = [[1.0, 2.0], [3.0, 4.0]]


def test_what_is_left_out_is_zero():
    p = gf.Parameters(V=M)
    field = p.affine_field(gf.Gaussian([1.0, 1.0], np.eye(2)))
    assert np.all(field.matrix == 0)
    assert np.array_equal(field.offset, [3.0, 7.0])  # V μ stays: attention with B = 0 averages all tokens
    assert np.array_equal(p.b, [0.0, 0.0])


def test_the_paper_s_system():
    """M = A + VΣB, and the mean moves by (A + V)μ + VΣBμ + b."""
    rng = np.random.default_rng(0)
    A, B, V = rng.normal(size=(3, D, D))
    b, mean, L = rng.normal(size=D), rng.normal(size=D), rng.normal(size=(D, D))
    S = L @ L.T
    field = gf.Parameters(A=A, B=B, V=V, b=b).affine_field(gf.Gaussian.from_factor(mean, L))
    assert np.allclose(field.matrix, A + V @ S @ B, atol=1e-13)
    assert np.allclose(field.at(jnp.asarray(mean)), (A + V) @ mean + V @ S @ B @ mean + b, atol=1e-13)


@pytest.mark.parametrize(
    ("given", "dim", "heads"),
    [
        ({}, None, 1),
        ({"A": 1.0, "B": 2, "V": -1}, None, 1),
        ({"A": M}, 2, 1),
        ({"B": [M, M, M], "V": -1.0}, 2, 3),
        ({"b": [1, 2, 3]}, 3, 1),
        ({"V": [M, M], "B": M}, 2, 2),
    ],
)
def test_dimension_and_heads(given, dim, heads):
    p = gf.Parameters(**given)
    assert (p.dim, p.heads) == (dim, heads)
    assert f"dimension {dim if dim else 'any'}" in str(p)


def test_scalars_mean_multiples_of_the_identity():
    g = gf.Gaussian([1.0, 2.0], M := np.array([[2.0, 1.0], [1.0, 3.0]]))
    scalar = gf.Parameters(A=0.5, B=2.0, V=-3.0, b=[1.0, 1.0])
    full = gf.Parameters(A=0.5 * np.eye(2), B=2 * np.eye(2), V=-3 * np.eye(2), b=[1.0, 1.0])
    for one, other in ((scalar.affine_field(g), full.affine_field(g)),):
        assert np.allclose(one.matrix, other.matrix, atol=1e-15)
        assert np.allclose(one.matrix, 0.5 * np.eye(2) - 6 * M, atol=1e-14)
        assert np.array_equal(one.offset, other.offset)
    x = jnp.asarray([[1.0, 0.0], [0.5, -1.0]])
    assert np.allclose(scalar.velocity(x, x), full.velocity(x, x), atol=1e-15)
    assert scalar.A.shape == scalar.B.shape == scalar.V.shape == ()


@pytest.mark.parametrize(
    ("V", "value"),
    [
        (2.0, 2.0),
        (2 * np.eye(3), 2.0),
        ([np.eye(3)] * 2, 1.0),
        (np.zeros((3, 3)), 0.0),
        (np.diag([1.0, 1.0, 2.0]), None),
        ([np.eye(3), 2 * np.eye(3)], None),
        (np.eye(3) + 1e-16 * np.eye(3)[::-1], None),
        (np.ones((3, 3)), None),
    ],
)
def test_scalar_value_is_seen_where_it_is_exact(V, value):
    found = gf.Parameters(A=np.eye(3), V=V).scalar_value()
    assert (found is None) == (value is None)
    assert found is None or float(found) == value


def test_a_traced_scalar_marks_itself_and_a_traced_matrix_is_not_tested():
    assert jax.jit(lambda v: gf.Parameters(V=v).scalar_value())(2.0) == 2.0
    seen = []
    jax.jit(lambda V: seen.append(gf.Parameters(V=V).scalar_value()) or V)(np.eye(2))
    assert seen == [None]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"A": [1, 2]}, "A: got shape (2,); wanted a scalar or a (d, d) matrix; write numpy.diag(...)"),
        ({"A": np.ones((2, 3))}, "A: got shape (2, 3); wanted a scalar or a (d, d) matrix"),
        ({"A": np.ones((2, 2, 2))}, "A: got shape (2, 2, 2); wanted a scalar or a (d, d) matrix"),
        ({"A": np.ones((0, 0))}, "A: got shape (0, 0)"),
        ({"B": [1, 2]}, "B: got shape (2,); wanted a scalar, a (d, d) matrix, or (heads, d, d); write numpy.diag"),
        ({"V": np.ones((2, 2, 3))}, "V: got shape (2, 2, 3); wanted a scalar, a (d, d) matrix, or (heads, d, d)"),
        ({"B": np.ones((1, 1, 2, 2))}, "B: got shape (1, 1, 2, 2)"),
        ({"B": np.ones((0, 2, 2))}, "B: got no heads; wanted at least one head; leave it out for no attention"),
        (
            {"B": np.ones((2, 2, 2)), "V": np.ones((3, 2, 2))},
            "V: got 3 heads beside 2 heads of B; wanted as many heads",
        ),
        ({"B": np.ones((2, 2)), "V": np.ones((3, 3))}, "V: got shape (3, 3) beside B of shape (2, 2)"),
        ({"A": M, "V": np.ones((3, 3))}, "V: got shape (3, 3) beside A of dimension 2; wanted one dimension d"),
        ({"A": M, "b": [1, 2, 3]}, "b: got shape (3,) beside A of dimension 2"),
        ({"b": 1.0}, "b: got a scalar; wanted a vector of shape (d,); write numpy.full(d, c)"),
        ({"b": []}, "b: got shape (0,); wanted a vector of shape (d,)"),
        ({"A": [[1, np.nan], [0, 1]]}, "A: got 1 NaN or infinite entry"),
        ({"V": 1j}, "V: got complex numbers"),
        ({"B": "one"}, "B: got entries of type <U3"),
    ],
)
def test_refusals(given, text):
    with pytest.raises(gf.InvalidInput) as refusal:
        gf.Parameters(**given)
    assert str(refusal.value).startswith(text)
    assert "\n" not in str(refusal.value)


def test_feed_forward():
    layer = gf.AffineFeedForward(A=M, b=[5, 6])
    x = jnp.asarray([[1.0, 0.0], [0.0, 1.0]])
    assert np.array_equal(layer.velocity(x, x), [[6.0, 9.0], [7.0, 10.0]])
    field = layer.affine_field(gf.Gaussian([9.0, 9.0], np.eye(2)))
    assert np.array_equal(field.matrix, M)
    assert np.array_equal(field.offset, [5.0, 6.0])
    assert (layer.growth, layer.dim, gf.AffineFeedForward(A=2.0).dim) == ("bounded", 2, None)
    assert np.array_equal(gf.AffineFeedForward(A=2.0).velocity(x, x), 2 * x)
    with pytest.raises(gf.InvalidInput, match=r"^b: got shape \(3,\) beside A of shape \(2, 2\)"):
        gf.AffineFeedForward(A=M, b=[1, 2, 3])


def test_block_adds_up_like_parameters():
    rng = np.random.default_rng(1)
    A, B, V = rng.normal(size=(3, D, D))
    p = gf.Parameters(A=A, B=B, V=V, b=[1.0, 2.0])
    block = gf.Block(gf.AffineFeedForward(A=A, b=[1.0, 2.0]), gf.SoftmaxAttention(B=B, V=V))
    g = gf.Gaussian([1.0, -1.0], np.eye(2) + 0.5)
    assert np.allclose(block.affine_field(g).matrix, p.affine_field(g).matrix, atol=1e-14)
    assert np.allclose(block.affine_field(g).offset, p.affine_field(g).offset, atol=1e-14)
    assert np.allclose(block.lyapunov_matrix(g), p.lyapunov_matrix(g), atol=1e-14)
    x = jnp.asarray(rng.normal(size=(4, D)))
    assert np.allclose(block.velocity(x, x), p.velocity(x, x), atol=1e-14)
    assert (block.dim, block.growth, block.autonomous) == (p.dim, p.growth, p.autonomous) == (2, "linear", True)
    assert [type(part) for part in block.parts] == [gf.AffineFeedForward, gf.SoftmaxAttention]
    assert [type(part) for part in gf.Block(p, block).parts] == [
        gf.SoftmaxAttention, gf.AffineFeedForward, gf.AffineFeedForward, gf.SoftmaxAttention]  # fmt: skip
    assert gf.Block(gf.AffineFeedForward(A=A)).growth == "bounded"


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ((), "layers: got nothing; wanted at least one attention or feed-forward layer"),
        ((np.eye(2),), "layers: got ndarray; wanted attention or feed-forward layers"),
        ((gf.AffineFeedForward(A=np.eye(2)), gf.SoftmaxAttention(B=np.eye(3))), "layers: got dimensions [2, 3]"),
    ],
)
def test_refused_blocks(layers, text):
    with pytest.raises(gf.InvalidInput) as refusal:
        gf.Block(*layers)
    assert str(refusal.value).startswith(text)


class LinearAttention(gf.MeanFieldLayer):
    """A kernel of the user's own: ⟨Bx, y⟩ without normalisation, M = (Σ + μμᵀ)B."""

    B: jax.Array

    @property
    def dim(self):
        return self.B.shape[-1]

    @property
    def growth(self):
        return "linear"

    @property
    def autonomous(self):
        return False

    def affine_field(self, gaussian):
        mean = gaussian.mean[:, None]
        chains = ((*gaussian.covariance_chain, self.B), (mean, mean.T, self.B))
        return gf.AffineField(chains, jnp.zeros_like(gaussian.mean))

    def velocity(self, x, tokens):
        return (x @ self.B.T @ tokens.T) @ tokens / tokens.shape[0]


def test_a_kernel_of_the_user_s_own():
    rng = np.random.default_rng(2)
    B, A = rng.normal(size=(2, D, D))
    tokens = jnp.asarray(rng.normal(size=(6, D)))
    g = gf.Gaussian.from_samples(tokens, ddof=0)
    block = gf.Block(LinearAttention(jnp.asarray(B)), gf.AffineFeedForward(A=A))
    assert (block.dim, block.growth, block.autonomous) == (2, "linear", False)
    # The moments of the tokens are all this kernel sees, so finite tokens and the Gaussian agree exactly.
    expected = np.asarray(jax.vmap(block.affine_field(g).at)(tokens))
    assert np.allclose(block.velocity(tokens, tokens), expected, atol=1e-13)
    assert np.allclose(block.lyapunov_matrix(g), block.affine_field(g).matrix, atol=1e-14)
    final = gf.simulate(block, g, t1=0.05).final
    assert np.all(np.isfinite(final.covariance))
    slope = (np.asarray(final.covariance) - np.asarray(g.covariance)) / 0.05
    assert np.allclose(slope, block.covariance_rate(g), rtol=0.3, atol=0.1)


def test_layers_are_pytrees_under_jit_vmap_and_grad():
    g = gf.Gaussian([1.0, 2.0], np.eye(2))
    batch = jax.vmap(lambda A, V: gf.Parameters(A=A, V=V, B=1.0))(np.stack([np.eye(2)] * 3), np.arange(3.0))
    matrices = jax.jit(jax.vmap(lambda p: p.affine_field(g).matrix))(batch)
    assert np.allclose(matrices, np.arange(1, 4)[:, None, None] * np.eye(2))
    gradient = jax.grad(lambda p: jnp.sum(p.affine_field(g).matrix))(gf.Parameters(A=M, B=M, V=1.0))
    assert np.array_equal(gradient.A, np.ones((2, 2)))
    assert float(gradient.V) == 10.0  # Σ = I: the sum of the entries of B
