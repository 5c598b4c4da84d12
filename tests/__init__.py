"""Tests of Ariadne; the folders below need different environments."""
