"""Holdfast inside of web frameworks."""
