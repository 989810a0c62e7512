"""Gaussian mean-field Transformers: simulate, steer and classify how tokens flow through depth.

The public names. They load on first use: importing JAX costs two seconds that ``gaussflow --help`` need not pay.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gaussflow import metrics as metrics
    from gaussflow import plotting as plotting
    from gaussflow.errors import GaussflowError as GaussflowError
    from gaussflow.errors import InvalidInput as InvalidInput
    from gaussflow.errors import PrecisionWarning as PrecisionWarning
    from gaussflow.files.problem import load_problem as load_problem
    from gaussflow.flow.blow_up import blow_up_time as blow_up_time
    from gaussflow.flow.simulate import simulate as simulate
    from gaussflow.flow.trajectory import BlowUp as BlowUp
    from gaussflow.flow.trajectory import Outcome as Outcome
    from gaussflow.flow.trajectory import Trajectory as Trajectory
    from gaussflow.gaussian import Gaussian as Gaussian
    from gaussflow.layers.attention import SoftmaxAttention as SoftmaxAttention
    from gaussflow.layers.feedforward import AffineFeedForward as AffineFeedForward
    from gaussflow.layers.field import AffineField as AffineField
    from gaussflow.layers.field import MeanFieldLayer as MeanFieldLayer
    from gaussflow.layers.parameters import Block as Block
    from gaussflow.layers.parameters import Parameters as Parameters
    from gaussflow.layers.schedule import PiecewiseConstant as PiecewiseConstant
    from gaussflow.layers.schedule import Schedule as Schedule
    from gaussflow.layers.schedule import TimeVarying as TimeVarying
    from gaussflow.layers.stacking import stack as stack

__version__ = "0.1.0"

_HOMES = {
    "AffineFeedForward": "layers.feedforward",
    "AffineField": "layers.field",
    "Block": "layers.parameters",
    "BlowUp": "flow.trajectory",
    "Gaussian": "gaussian",
    "GaussflowError": "errors",
    "InvalidInput": "errors",
    "MeanFieldLayer": "layers.field",
    "Outcome": "flow.trajectory",
    "Parameters": "layers.parameters",
    "PiecewiseConstant": "layers.schedule",
    "PrecisionWarning": "errors",
    "Schedule": "layers.schedule",
    "SoftmaxAttention": "layers.attention",
    "TimeVarying": "layers.schedule",
    "Trajectory": "flow.trajectory",
    "blow_up_time": "flow.blow_up",
    "load_problem": "files.problem",
    "simulate": "flow.simulate",
    "stack": "layers.stacking",
}
_MODULES = ("metrics", "plotting")

__all__ = sorted([*_HOMES, *_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"gaussflow.{_HOMES[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"gaussflow.{name}")
    else:
        raise AttributeError(f"module 'gaussflow' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
