"""Figures of uploads that were made and spared: sums and differences are exact, and nothing goes backwards."""

import pytest

from vyre.driver.resident.reuse import ResidentGraphReuseTelemetry as Telemetry
from vyre.driver.resident.reuse import ResidentGraphReuseTelemetryError as Wrong

U64_MAX = (1 << 64) - 1


@pytest.mark.row("C-rs-1")
def test_a_difference_is_that_of_each_figure():
    later, earlier = Telemetry(4, 7, 256, 1024), Telemetry(1, 2, 64, 128)
    assert later.delta_since(earlier) == Telemetry(3, 5, 192, 896)
    assert earlier + Telemetry(3, 5, 192, 896) == later
    assert later.delta_since(later) == Telemetry()


@pytest.mark.row("C-rs-2")
def test_a_count_that_went_back_is_named():
    with pytest.raises(Wrong, match=r"cold_uploads went back from 2 to 1.*Fix: compare figures of one session") as e:
        Telemetry(1, 0, 0, 0).delta_since(Telemetry(2, 1, 1, 1))
    assert e.value.context["counter"] == "cold_uploads"  # the first of them


@pytest.mark.row("C-rs-3")
def test_bytes_that_went_back_are_named():
    with pytest.raises(Wrong, match="upload_bytes went back from 128 to 64") as e:
        Telemetry(2, 1, 64, 0).delta_since(Telemetry(1, 1, 128, 0))
    assert e.value.context["counter"] == "upload_bytes"


def test_figures_stay_within_64_bits():
    assert (Telemetry(U64_MAX) + Telemetry(0, 1)).cold_uploads == U64_MAX
    with pytest.raises(Wrong, match=r"avoided_upload_bytes overflowed.*Fix: start a new session"):
        Telemetry(0, 0, 0, U64_MAX) + Telemetry(0, 0, 0, 1)
    with pytest.raises(Wrong, match="warm_reuses is below zero"):
        Telemetry(0, -1)
