"""OpenVINO as an engine of Evalution, through Optimum Intel."""

from evalution_openvino.engine import OpenVINO

__all__ = ["OpenVINO"]
