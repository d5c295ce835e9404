"""Holdfast inside of web frameworks; each part needs its framework, and nothing else here needs it."""
