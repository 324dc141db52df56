"""One token and one error for every kind of long work."""

import afec.experiments
import afec.learner
from afec.stopping import NEVER, StoppedError


def test_who_never_stops_is_never_asked():
    assert NEVER.asked is False


def test_a_work_that_stopped_is_caught_by_one_name_wherever_it_ran():
    assert afec.experiments.StoppedError is afec.learner.StoppedError is StoppedError
