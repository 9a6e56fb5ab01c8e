"""Choices of experts in a program that records none: found, made outputs, counted on the host."""
