"""What exactly will be launched?"""

from ...foundation.lazy import lazily, where

_OFFERS = {
    ".binding": "Binding BindingPlan BindingRole",
    ".grid": "LaunchGeometryLimits",
    ".launch": "PlannedDispatch LaunchPlan plan_dispatch",
    ".outputs": "OutputBindingLayout OutputLayout OutputSlot replace_output_buffers_preserving_slots",
}
__all__ = sorted(where(_OFFERS))
__getattr__ = lazily(__name__, _OFFERS)
