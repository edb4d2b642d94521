"""The container image and its tests: `make container`.

`trim` and `warm` run while the image is built; the other modules drive a container engine from outside.
"""
