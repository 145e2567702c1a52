"""Bringing a run back: the transaction, copies of the training state, checkpoints, rates and the policy ladder."""

from stayfinite.recover.checkpoint import CheckpointError
from stayfinite.recover.plan import Criteria, Plan, Stage
from stayfinite.recover.policy import Action, Policy, RunStopped

__all__ = ["Action", "CheckpointError", "Criteria", "Plan", "Policy", "RunStopped", "Stage"]
