"""The state machine test: random calls on a store and on a model, compared after every step. Needs Hypothesis."""

from holdfast.testing.kit.model.machine import StoreMachine, state_machine
from holdfast.testing.kit.model.oracle import Model

__all__ = ["Model", "StoreMachine", "state_machine"]
