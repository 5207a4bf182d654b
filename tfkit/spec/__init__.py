"""Specs: YAML or JSON, checked with located errors and resolved to a `ModelSpec`."""

from .dump import resolved, to_json, to_yaml
from .load import load_spec, parse_spec
from .model import Expect, ModelSpec
from .schema import json_schema

__all__ = ["Expect", "ModelSpec", "json_schema", "load_spec", "parse_spec", "resolved", "to_json", "to_yaml"]
