"""The image, and the runs that show that it works: `make container-smoke` and `make compose-smoke`.

`trim` is used while the image is built and needs nothing but Python; the rest drives an engine from outside.
"""
