"""The vocabulary that everything else speaks: findings, incidents, rules and the subjects they examine."""

from stayfinite.findings.causes import CAUSES
from stayfinite.findings.finding import Depth, Finding, Proof, Severity, worst_first
from stayfinite.findings.incident import Birth, Histogram, Incident, PathStep, TensorSummary
from stayfinite.findings.jsonable import Json, as_float, dumps, jsonable
from stayfinite.findings.rule import FAMILIES, Rule, all_rules, examine, find_rule

__all__ = [
    "CAUSES",
    "FAMILIES",
    "Birth",
    "Depth",
    "Finding",
    "Histogram",
    "Incident",
    "Json",
    "PathStep",
    "Proof",
    "Rule",
    "Severity",
    "TensorSummary",
    "all_rules",
    "as_float",
    "dumps",
    "examine",
    "find_rule",
    "jsonable",
    "worst_first",
]
