"""The whole service as processes of this machine, and other programs and data that tests work with."""
