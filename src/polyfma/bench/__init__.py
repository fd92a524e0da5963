"""Measurements on a GPU: isolated operators, components of a model, and the choice of default programs.

Every measurement is of several arms in one run, in rounds of alternating order; a figure is the median of the rounds with
its spread. All results have one schema (:mod:`polyfma.bench.result`).
"""
