"""Writes grown networks in formats that are read without Esper."""
