"""blow_up_time(): when does the covariance become infinite, if it does?"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from gaussflow.arrays import as_number, is_concrete
from gaussflow.errors import InvalidInput, NumericalFailure
from gaussflow.flow import kernels
from gaussflow.flow.compactified import BLOW_UP
from gaussflow.flow.kernels import Problem, Settings
from gaussflow.flow.run import Status
from gaussflow.flow.simulate import (
    LOCAL_SHARE,
    MAX_STEPS,
    check_gaussian,
    check_tolerances,
    closed_form_inputs,
    has_closed_form,
    is_known,
    may_blow_up,
    no_blow_up,
)
from gaussflow.flow.tableau import tableau_of
from gaussflow.flow.trajectory import BlowUp
from gaussflow.gaussian import Gaussian
from gaussflow.layers.schedule import as_schedule


def blow_up_time(
    parameters: Any,
    gaussian: Gaussian | Any,
    horizon: Any = 100.0,
    *,
    t0: Any = 0.0,
    method: str | Any = "auto",
    rtol: Any = None,
    max_steps: int | Any = None,
    differentiate: str | Any = "reverse",
) -> BlowUp | None:
    """The first finite-time blow-up of the covariance within ``horizon`` after t0.

    Parameters
    ----------
    parameters, gaussian:
        as for :func:`simulate`; constant or time-varying.
    horizon:
        how far to look, a length of time; a negative one looks backward.
    method:
        "auto", "exact" (V = vI) or "compactified".

    Returns
    -------
    BlowUp or None
        None: no blow-up was found up to the horizon, which is a numerical statement and no proof. Under ``jit``,
        ``vmap`` and ``grad`` always a record, with ``found``. Its time can be differentiated.

    Raises
    ------
    InvalidInput
        for arguments that do not fit together.
    NumericalFailure
        if the search ran out of steps or met growth without a blow-up direction, so that there is no answer.
    """
    schedule = as_schedule(parameters)
    check_gaussian(gaussian, schedule)
    if method not in ("auto", "exact", "compactified"):
        raise InvalidInput("method", got=repr(method), wanted="auto, exact or compactified")
    t0, horizon = as_number(t0, "t0"), as_number(horizon, "horizon", finite=False)
    if is_concrete(horizon) and np.isnan(float(horizon)):
        raise InvalidInput("horizon", got="nan", wanted="a length of time")
    t1 = jnp.clip(t0 + horizon, schedule.edges[0], schedule.edges[-1])
    rtol, atol = check_tolerances(rtol, None)
    concrete = is_known(schedule, t0, gaussian, t1, rtol)
    kind = "lax" if concrete or differentiate == "forward" else "checkpointed"
    settings = Settings(1, tableau_of("dopri8"), False, max_steps or MAX_STEPS, kind)
    t0, t1, rtol, atol = (jnp.asarray(x) for x in (t0, t1, LOCAL_SHARE * rtol, atol))
    problem = Problem(schedule, gaussian.mean, gaussian.factor, t0, t1, rtol, atol)
    closed = method != "compactified" and has_closed_form(schedule)
    if method == "exact" and not closed:
        raise InvalidInput("method", got="'exact'", wanted="constant parameters with V = vI for the closed form")
    if closed:
        run = kernels.exact_blow_up_jit if concrete else kernels.exact_blow_up
        record = run(*closed_form_inputs(problem), problem, kind=kind)
    elif not may_blow_up(schedule, t0):
        record = no_blow_up(gaussian)
    else:
        if concrete:
            arrays, rest = kernels.halves(schedule)
            search, error = kernels.search_jit(problem._replace(schedule=arrays), rest, settings=settings)
            status = int(np.asarray(search.status))
            if status not in (Status.REACHED_END, BLOW_UP):
                raise NumericalFailure(
                    f"the search for a blow-up stopped at t = {float(search.time):.6g}: {Status.IN_WORDS[status]}"
                )
        else:
            search, error = kernels.search(problem, None, settings=settings)
        record = BlowUp(search.time, error, search.factor, search.turning, search.found)
    if concrete and not bool(np.asarray(record.found)):
        return None
    return record
