"""A run as a YAML file: read, checked, described by a schema, and written out as Python."""

from evalution.runs.lane import Lane
from evalution.yaml_spec.run_spec import Spec, load_spec

__all__ = ["Lane", "Spec", "load_spec"]
