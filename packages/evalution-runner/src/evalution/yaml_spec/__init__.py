"""A run as a YAML file: read, checked, described by a schema, and written out as Python."""

from evalution.runs.preflight import EngineAndModel
from evalution.yaml_spec.run_spec import Spec, load_spec

__all__ = ["EngineAndModel", "Spec", "load_spec"]
