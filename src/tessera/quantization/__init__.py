"""Streaming quantization pipeline of small passes."""

from tessera.quantization.pipeline import QuantizeOptions, quantize
from tessera.quantization.report import Module, Report

__all__ = ["Module", "QuantizeOptions", "Report", "quantize"]
