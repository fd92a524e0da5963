"""The versions that operators were run with: named where another one turns out to differ inside."""

TESTED_TORCH = "2.11, 2.13"
TESTED_TRITON = "3.6"
