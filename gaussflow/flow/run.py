"""What every integrator returns: the saved states, where it stopped, and why."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from jaxtyping import Array


class Status:
    """Why an integrator stopped, as small integers that pass through ``jit`` and ``vmap``."""

    REACHED_END = 0
    GREW = 1  # the covariance passed the size at which a blow-up must be ruled out or found
    STIFF = 2  # explicit steps are limited by stability, not by accuracy
    OUT_OF_STEPS = 3
    STEP_TOO_SMALL = 4
    IMPLICIT_SOLVE_FAILED = 5
    NO_BLOW_UP_DIRECTION = 6

    IN_WORDS: ClassVar[dict[int, str]] = {
        REACHED_END: "reached the end",
        GREW: "the covariance grew until a blow-up had to be ruled out",
        STIFF: "explicit steps are limited by stability",
        OUT_OF_STEPS: "ran out of steps (max_steps)",
        STEP_TOO_SMALL: "the step size fell below rounding before the end",
        IMPLICIT_SOLVE_FAILED: "the implicit equations could not be solved even with tiny steps",
        NO_BLOW_UP_DIRECTION: "growth without a blow-up direction",
    }


class Run(NamedTuple):
    """One pass of an integrator.

    ``saved`` has the structure of a state with a leading axis of save times; entries from ``reached`` on repeat the
    last valid state. ``t`` and ``state`` are where it stopped, ``status`` one of :class:`Status`.
    """

    saved: Any
    reached: Array
    t: Array
    state: Any
    status: Array
    steps: Array
    rejected: Array
    evaluations: Array
