"""What exactly will be launched."""

from .binding import Binding, BindingPlan, BindingRole
from .grid import LaunchGeometryLimits
from .launch import DispatchPlan, LaunchPlan, plan_dispatch
from .outputs import OutputBindingLayout, OutputLayout, OutputSlot, replace_output_buffers_preserving_slots

__all__ = [
    "Binding",
    "BindingPlan",
    "BindingRole",
    "DispatchPlan",
    "LaunchGeometryLimits",
    "LaunchPlan",
    "OutputBindingLayout",
    "OutputLayout",
    "OutputSlot",
    "plan_dispatch",
    "replace_output_buffers_preserving_slots",
]
