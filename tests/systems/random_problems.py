"""Random problems with known properties, drawn with numpy so that a seed names a problem."""

import numpy as np

import gaussflow as gf


def draw(seed: int, d: int, rank: int | None = None, *, strength: float = 0.4, heads: int = 1):
    """Parameters with all of A, B, V, b in general position and a Gaussian of the given rank; no blow-up before 1/2."""
    rng = np.random.default_rng(seed)
    rank = d if rank is None else rank
    matrix = lambda *shape: rng.normal(size=(*shape, d, d)) / np.sqrt(d)
    A = matrix()
    B = matrix(heads)[0] if heads == 1 else matrix(heads)
    V = matrix(heads)[0] if heads == 1 else matrix(heads)
    b, mean = rng.normal(size=d), rng.normal(size=d)
    factor = np.sqrt(strength) * rng.normal(size=(d, rank)) / np.sqrt(max(rank, 1))
    return gf.Parameters(A=A, B=B, V=0.5 * V, b=b), gf.Gaussian.from_factor(mean, factor)


def right_hand_side(p: gf.Parameters):
    """The system (1) of the paper on a flat vector (Σ, μ), in numpy, for scipy: an oracle that shares no code."""
    d = p.dim
    A = np.asarray(p.A) * np.eye(d) if np.ndim(p.A) == 0 else np.asarray(p.A)
    heads = [
        (B * np.eye(d) if np.ndim(B) == 0 else B, V * np.eye(d) if np.ndim(V) == 0 else V)
        for B, V in zip(np.broadcast_to(p.B, (p.heads, d, d)) if np.ndim(p.B) == 2 else np.asarray(p.B),
                        np.broadcast_to(p.V, (p.heads, d, d)) if np.ndim(p.V) == 2 else np.asarray(p.V), strict=True)
    ] if np.ndim(p.B) >= 2 and np.ndim(p.V) >= 2 else [
        (np.asarray(p.B) * np.eye(d) if np.ndim(p.B) == 0 else np.asarray(p.B),
         np.asarray(p.V) * np.eye(d) if np.ndim(p.V) == 0 else np.asarray(p.V))
    ]  # fmt: skip
    b = np.zeros(d) if p.b is None else np.asarray(p.b)

    def rhs(_, y):
        covariance, mean = y[:-d].reshape(d, d), y[-d:]
        M = A + sum(V @ covariance @ B for B, V in heads)
        flow = M @ covariance
        drift = M @ mean + sum(V for _, V in heads) @ mean + b
        return np.concatenate([(flow + flow.T).ravel(), drift])

    return rhs


def solve_with_scipy(p: gf.Parameters, g: gf.Gaussian, times, *, rtol=1e-12):
    """Means and covariances at ``times`` (starting at 0) by DOP853."""
    from scipy.integrate import solve_ivp

    d = p.dim
    start = np.concatenate([np.asarray(g.covariance).ravel(), np.asarray(g.mean)])
    times = np.asarray(times, dtype=float)
    solution = solve_ivp(
        right_hand_side(p), (0.0, times[-1]), start, method="DOP853", rtol=rtol, atol=1e-14, t_eval=times
    )
    assert solution.success
    return solution.y[-d:].T, solution.y[:-d].T.reshape(len(times), d, d)


def relative(computed, reference) -> float:
    """Largest absolute difference over the largest entry of the reference."""
    computed, reference = np.asarray(computed), np.asarray(reference)
    return float(np.max(np.abs(computed - reference)) / np.max(np.abs(reference)))
