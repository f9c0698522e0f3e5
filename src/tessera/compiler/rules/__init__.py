"""Qtile computation transformation (QFactory section 4, seed 002): what an operation on Qtiles may become.

`forms` reads a Qtile as codes with a scale and a bias; `patterns` brings group patterns together; `add`,
`mul`, `matmul` and `reduce` are the tables, one function a row; `movement` passes Qtiles through operations
that only move elements; `table` names the rules of every operation for the search.
"""

from tessera.compiler.rules.table import Refusal, Rewrite, transformations

__all__ = ["Refusal", "Rewrite", "transformations"]
