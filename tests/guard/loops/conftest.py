"""Every loop is run with EWC alone and with EWC + AFEC."""

import pytest

from two_tasks import KINDS


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param
