"""Figures for Plotly: `base` has their parts, one module for each group of pages has the figures."""
