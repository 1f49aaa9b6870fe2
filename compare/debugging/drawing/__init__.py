"""Findings as an HTML page: tensors with their wrong elements, tiles, loads and stores by line."""
