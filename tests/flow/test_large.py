"""Large dimension and low rank: the factor form never holds a (d, d) matrix beside the parameters."""

import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gaussflow as gf
from gaussflow.flow.forms import FORMS

MEASURE = """
    import resource
    import jax
    jax.config.update("jax_enable_x64", True)
    import numpy as np
    import gaussflow as gf

    d, rank = {d}, 8
    rng = np.random.default_rng(0)
    shift = np.eye(d, k=1)
    p = gf.Parameters(A=0.5 * shift, V=0.1 * shift - np.eye(d), B=np.eye(d), b=np.ones(d))
    del shift
    g = gf.Gaussian.from_factor(np.zeros(d), rng.normal(size=(d, rank)) / np.sqrt(d))
    jax.block_until_ready((p, g))
    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    # What making the parameters took at its peak is there to be used again: count from what is held now.
    held = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 2**30
    trajectory = gf.simulate(p, g, t1=1.0, rtol=1e-6)
    jax.block_until_ready(trajectory.means)
    assert trajectory.outcome == gf.Outcome.COMPLETED and trajectory.method == "factor"
    print(max(peak() - held, 0.0))
"""


def memory(d: int) -> float:
    """GiB above the parameters at the peak of a run, in a process of its own."""
    script = textwrap.dedent(MEASURE).format(d=d)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return float(run.stdout)


@pytest.mark.slow
def test_memory_at_4096():
    assert memory(4096) < 1.0


def test_no_square_intermediate():
    d, rank = 64, 3
    p = gf.Parameters(A=np.eye(d), B=np.eye(d), V=np.eye(d), b=np.ones(d))
    jaxpr = jax.make_jaxpr(lambda p, y: FORMS["factor"].rate(p, y))(p, jnp.zeros((d, rank + 1)))
    shapes = {variable.aval.shape for equation in jaxpr.eqns for variable in equation.outvars}
    assert shapes
    assert (d, d) not in shapes
